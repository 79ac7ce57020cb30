"""`weft train` in a terminal: what is visible at 60 and at 80 columns, and Ctrl-C."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pexpect
import pyte
import pytest

from tests.training.material import write_pairs

SLOW_STEPS = [
    "model.width=192",
    "model.num_layers=3",
    "model.attention.num_heads=4",
    "train.batch_tokens=16000",
    "train.save_minutes=5",
]


class Terminal:
    """A program in a terminal of a given size."""

    def __init__(self, args: list[str], columns: int, rows: int) -> None:
        self.screen = pyte.Screen(columns, rows)
        self.stream = pyte.ByteStream(self.screen)
        self.program = pexpect.spawn(
            sys.executable,
            ["-m", "weft", *args],
            dimensions=(rows, columns),
            timeout=100,
            use_poll=True,
        )
        self.seen = b""

    def read(self) -> None:
        """Show what the program has written meanwhile."""
        try:
            text = self.program.read_nonblocking(65536, timeout=0.02)
        except pexpect.TIMEOUT:
            return
        self.seen += text
        self.stream.feed(text)

    def wait_for(self, pattern: str, seconds: float = 90) -> float:
        """Seconds until a line of the screen matches."""
        begin = time.monotonic()
        while time.monotonic() - begin < seconds:
            self.read()
            if any(re.search(pattern, line) for line in self.screen.display):
                return time.monotonic() - begin
        raise AssertionError("\n".join(self.screen.display))

    def wait_for_end(self) -> int:
        while self.program.isalive():
            try:
                self.read()
            except pexpect.EOF:
                break
        self.program.wait()
        return int(self.program.exitstatus or 0)


def arguments(folder: Path, *settings: str) -> list[str]:
    source, target = map(str, write_pairs(folder, lines=3000))
    changes = ["train.steps=100000", "tokenizer.vocab_size=300", "model.max_len=32", *settings]
    options = [part for change in changes for part in ("--set", change)]
    return ["train", "--pairs", source, target, "--out", str(folder / "run"), *options]


@pytest.mark.parametrize(
    ("columns", "rows"), [(60, 20), pytest.param(80, 24, marks=pytest.mark.slow)]
)
def test_step_loss_and_time_left_are_visible_and_ctrl_c_is_answered_at_once(
    tmp_path: Path, columns: int, rows: int
) -> None:
    terminal = Terminal(arguments(tmp_path, *SLOW_STEPS), columns, rows)
    terminal.wait_for(r"^step \d+/100,000  loss \d\.\d{3}  left [\d:]+")
    if columns == 80:
        terminal.wait_for(r"\d tokens/s")
    stages = terminal.seen.decode()
    for stage in ("inspecting the files", "training the tokenizer", "encoding the pairs"):
        assert stage in stages, "the display must not stay empty before the first step"
    terminal.program.sendintr()
    seconds = terminal.wait_for("stopping after this step, with a checkpoint")
    assert seconds < 0.2, seconds
    assert terminal.wait_for_end() == 130
    assert f"weft train --out {tmp_path}/run" in re.sub(r"\s+", " ", terminal.seen.decode())
    assert list((tmp_path / "run" / "checkpoints").iterdir())
