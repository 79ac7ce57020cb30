"""`weft generate --watch` in a real pseudo terminal, and as plain lines."""

import itertools
import re
import signal
import time
from pathlib import Path

import pyte
import pytest

from tests.cli.terminal import Terminal
from tests.engine.tiny import tiny_folder
from weft.cli.app import Command, main

COMMANDS = {"generate": Command("weft.cli.generate", "Continue a text.")}
PROMPT = "\u6211\u5403\u4e86\u82f9\u679c\uff0c\u5b83\u5f88\u751c"
ENTER = "\x1b[?1049h"
LEAVE = ("\x1b[?7h", "\x1b[?25h", "\x1b[?1049l")


class WatchTerminal(Terminal):
    """A terminal that shows `weft generate --watch`."""

    def wait_for_step(self, least: int) -> None:
        """Until a step is shown that is not before this one; not every step is drawn."""
        while int(self.wait_for(r"step (\d+)")[1]) < least:
            self.read()

    def is_aligned_to(self, columns: int) -> bool:
        """Whether the last line ends in the last column."""
        return self.screen.display[-1].endswith("n next step") and self.screen.columns == columns

    def is_restored(self) -> bool:
        """Whether screen, cursor, line wrapping and keyboard are as they were."""
        is_left = all(self.received.rfind(one) > self.received.rfind("\x1b[H") for one in LEAVE)
        return is_left and self.mode_at_end == self.mode


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("lm") / "model", "decoder", max_len=8192)


def arguments(folder: Path, *more: str) -> list[str]:
    endless = ["--max-tokens", "8000", "--regex", "[a-z \u82f9\u679c]{3000}", "--temperature", "1"]
    return ["generate", str(folder), PROMPT * 12, "--watch", *endless, *more]


def columns_of(screen: pyte.Screen, text: str) -> set[int]:
    """The columns in which a text begins: `display` has wide characters once, the buffer twice."""
    places = itertools.product(range(screen.lines), range(screen.columns))
    return {x for y, x in places if cells_of(screen, y, x, x + len(text)) == text}


def cells_of(screen: pyte.Screen, line: int, start: int, stop: int) -> str:
    return "".join(screen.buffer[line][column].data for column in range(start, stop))


def test_keys_pause_step_and_quit_and_ctrl_c_ends_it_all(folder):
    """In one process, as most of the time is spent on its imports."""
    terminal = WatchTerminal(80, 24, arguments(folder, "--n", "2"), arguments(folder))
    terminal.wait_for("tree   root")
    terminal.process.send(" ")
    step = int(terminal.wait_for(r"step (\d+)[^$]*paused  q quit  space continue")[1])
    time.sleep(0.3)
    terminal.read()
    assert int(terminal.wait_for(r"step (\d+)")[1]) == step
    terminal.process.send("n")
    terminal.wait_for(f"step {step + 1} ")
    check_aligned(terminal.screen)
    terminal.process.send(" ")
    terminal.wait_for_step(step + 9)
    terminal.process.send(" ")  # so that it cannot end before it is told to
    terminal.wait_for("paused")
    terminal.resize(60, 20)
    terminal.process.send("q")
    terminal.wait_for(r"\ntext   [^$]*n next step\s*$")  # the second run, which has one text
    assert terminal.is_aligned_to(60)
    terminal.process.sendintr()
    assert terminal.wait() == 130
    assert terminal.is_restored()
    assert "q quit" not in terminal.received[terminal.received.rfind(LEAVE[-1]) :]


def check_aligned(screen: pyte.Screen) -> None:
    """Every line of the view is in its place, with wide characters before it."""
    display = screen.display
    assert display[0].startswith("weft generate") and display[-1].endswith("n next step")
    (column,) = columns_of(screen, "also")
    shown = [line for line, text in enumerate(display) if re.match(r" +\d+ +[01] ", text)]
    assert len(shown) > 5
    for line in shown:
        assert re.fullmatch(r"[<01][.\d]{3}", cells_of(screen, line, column - 6, column - 2))
        assert cells_of(screen, line, column - 2, column) == "  "
    assert any("\u6211\u5403\u4e86" in line and "2 locks" in line for line in display)


@pytest.mark.slow
def test_a_terminated_view_restores_the_terminal(folder):
    terminal = WatchTerminal(60, 20, arguments(folder))
    terminal.wait_for("tree   root")
    terminal.process.kill(signal.SIGTERM)
    assert terminal.wait() == 128 + signal.SIGTERM
    assert terminal.is_restored()


@pytest.mark.slow
def test_a_stopped_view_restores_the_terminal_and_continues_in_another_size(folder):
    """With a shell as its parent: who has none that could continue it is not stopped."""
    terminal = WatchTerminal(80, 24, arguments(folder), has_shell=True)
    terminal.wait_for("tree   root")
    terminal.process.sendcontrol("z")
    terminal.wait_for("STOPPED")
    assert terminal.received.rfind(LEAVE[-1]) < terminal.received.rfind("STOPPED")
    assert terminal.received.count(ENTER) == 1
    terminal.resize(60, 20)
    terminal.process.sendline("")
    terminal.wait_for(r"n next step\s*$")
    assert terminal.is_aligned_to(60) and terminal.received.count(ENTER) == 2
    terminal.process.send("q")
    assert terminal.wait() == 0


def test_each_token_is_a_line_where_there_is_no_terminal(folder, capsys):
    words = ["generate", str(folder), "the cat", "--max-tokens", "6"]
    assert main(words, COMMANDS) == 0
    text = capsys.readouterr().out
    assert main([*words, "--watch"], COMMANDS) == 0
    shown = capsys.readouterr()
    assert shown.err == "" and "\x1b" not in shown.out and shown.out.endswith("\n" + text)
    lines = [line for line in shown.out.splitlines() if line.startswith("step ")]
    assert len(lines) == 6
    pattern = r'step \d+  ".*" p=[<\d.]{4}  also: ".*" [<\d.]{4}  ".*" .*  pages \d/\d+  hit 0 tok'
    assert [line for line in lines if not re.fullmatch(pattern, line)] == []


def test_many_prompts_share_a_tree(folder, tmp_path, capsys):
    prompts = tmp_path / "prompts"
    prompts.write_text("the cat sat on the mat\n\nthe cat sat on a dog\n")
    common = ["generate", str(folder), "--prompts", str(prompts), "--max-tokens", "5"]
    assert main(common, COMMANDS) == 0
    expected = [line for line in capsys.readouterr().out.splitlines() if line]
    assert main([*common, "--watch"], COMMANDS) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[-2:] == expected
    assert sum("sample 1" in line for line in out) == 5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--json"], "--watch and --json are both set: choose one of them."),
        (["--n", "256", "--prompts", "two"], "--watch has 512 texts to show: at most 256"),
    ],
)
def test_what_cannot_be_watched_is_refused(folder, tmp_path, monkeypatch, capsys, words, message):
    (tmp_path / "two").write_text("a\nb\n")
    monkeypatch.chdir(tmp_path)
    prompt = [] if "--prompts" in words else ["the"]
    assert main(["generate", str(folder), *prompt, "--watch", *words], COMMANDS) == 2
    assert message in capsys.readouterr().err
