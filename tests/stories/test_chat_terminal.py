"""`weft chat` in a terminal of 80x24, then of 60x20: Ctrl-C, pasted text, commands, a full context,
and messages of the chat before."""

from __future__ import annotations

import re
import stat
import time
from pathlib import Path

import pytest

from tests.cli.terminal import Terminal
from tests.engine.tiny import tiny_folder
from weft.checkpoint.weft_folder import TEMPLATE_FILE

TURNS = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }} {% endfor %}a:"
UP, CTRL_C, CTRL_D, CTRL_L, ENTER = "\x1b[A", "\x03", "\x04", "\x0c", "\r"
READY = r"(?m)^> *$\s*\Z"
"""An empty prompt at the end of the screen."""
SECONDS = 10
"""For a busy machine: Ctrl-C takes 0.05 s. The whole answer has 16,000 tokens."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tiny_folder(tmp_path_factory.mktemp("lm") / "model", "decoder", max_len=16384)
    (path / TEMPLATE_FILE).write_text(TURNS)
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tiny_folder(tmp_path_factory.mktemp("small") / "model", "decoder", max_len=160)
    (path / TEMPLATE_FILE).write_text(TURNS)
    return path


def pasted(text: str) -> str:
    """What a terminal sends for a pasted text."""
    return f"\x1b[200~{text}\x1b[201~"


def stop_answer(terminal: Terminal, sent: str, meanwhile: str = "") -> None:
    """Send a message that is answered for a long time, and stop the answer; `meanwhile` is typed
    before that."""
    terminal.process.send(sent)
    terminal.wait_for(r"(?m)^[a-z]{60}")
    if meanwhile:
        terminal.process.send(meanwhile)
    terminal.process.send(CTRL_C)
    began = time.monotonic()
    terminal.wait_for(r"\[stopped by Ctrl-C\]")
    assert time.monotonic() - began < SECONDS
    numbers = terminal.wait_for(r"\[([\d,]+) tokens[^;]*; prompt \d+, cached \d+\]")
    assert int(numbers[1].replace(",", "")) < 16000
    if not meanwhile:
        terminal.wait_for(READY)
        clear(terminal)


def clear(terminal: Terminal) -> None:
    """Leave only an empty prompt on the screen."""
    terminal.process.send(CTRL_L)
    terminal.wait_for(r"\A> *\n\s*\Z")


def command(terminal: Terminal, line: str, pattern: str) -> re.Match[str]:
    clear(terminal)
    terminal.process.send(line + ENTER)
    match = terminal.wait_for(pattern)
    terminal.wait_for(READY)
    return match


def test_a_chat_survives_ctrl_c_a_full_context_and_a_restart(
    folder: Path, small: Path, tmp_path: Path
) -> None:
    endless = ["--max-tokens", "16000", "--regex", "[a-z]{30000}", "--temperature", "1"]
    short = ["--regex", "[a-z]{30}"]
    runs = ["chat", str(folder), *endless], ["chat", str(small), *short]
    terminal = Terminal(80, 24, *runs, env={"WEFT_STATE": str(tmp_path / "state")})
    try:
        terminal.wait_for(READY)
        assert "context of 16,384 tokens, temperature 1." in terminal.text
        first_chat(terminal)
        terminal.resize(60, 20)
        terminal.process.send(CTRL_D)
        second_chat(terminal)
        terminal.process.send(CTRL_D)
        assert terminal.wait() == 0
        assert terminal.mode_at_end == terminal.mode
    finally:
        terminal.process.close(force=True)
    history = tmp_path / "state" / "chat_history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert '"first\\n\\nthird"' in history.read_text()


def first_chat(terminal: Terminal) -> None:
    """Answers that never end by themselves."""
    stop_answer(terminal, "hello" + ENTER, meanwhile=pasted("next\n\nline") + "!")
    terminal.wait_for(r"> next *\n *\n  line! *\s*\Z")
    terminal.process.send(CTRL_C)
    terminal.wait_for(READY)
    clear(terminal)
    terminal.process.send("a draft")
    terminal.wait_for("> a draft")
    terminal.process.send(CTRL_C)
    terminal.wait_for(READY)
    # an empty line must neither end the message nor the chat
    terminal.process.send(pasted("first\n\nthird\n"))
    terminal.wait_for(r"> first *\n *\n  third")
    stop_answer(terminal, ENTER)
    assert command(terminal, "/tokens", r"([\d,]+) of 16,384 tokens, in (\d) turns")[2] == "2"
    seed = command(terminal, "/set seed", r"seed is (\d+)\.")[1]
    terminal.process.send("/retry" + ENTER)
    assert terminal.wait_for(r"(?m)^seed (\d+):")[1] != seed
    stop_answer(terminal, "")
    command(terminal, "/undo", r"removed 'first third' and its answer; 1 turn left\.")
    command(terminal, "/set temperature 0", r"temperature is 0\.0\.")
    command(terminal, "/set temperature hot", r"temperature is 'hot': it must be a valid number")
    command(terminal, "/sett", r"'/sett' is not a command\. Did you mean /set\?")


def second_chat(terminal: Terminal) -> None:
    """Another chat, with a context that is full after a few turns."""
    terminal.wait_for(r"context of 160 tokens, greedy")
    terminal.wait_for(READY)
    terminal.process.send(UP)
    terminal.wait_for(r"> /sett")
    terminal.process.send(CTRL_C)
    terminal.wait_for(READY)
    # typed at once, so that the second one waits while the first is answered
    terminal.process.send("one" + ENTER + pasted("two\n\nthree") + ENTER)
    terminal.wait_for(r"(?s)three.*\[[\d,]+ tokens.*>")
    command(terminal, "/tokens", r"of 160 tokens, in 2 turns")
    for _ in range(9):
        clear(terminal)
        terminal.process.send("next" + ENTER)
        if "left" in terminal.wait_for(r"(?s)cached.*\n> *\s*\Z|are left for the\s+answer")[0]:
            break
    terminal.wait_for(r"(?s)d = drop the oldest .*a = answer anyway.*d, a, s: *\s*\Z")
    terminal.process.send("s" + ENTER)
    terminal.wait_for(r"(?m)^> next *$\s*\Z")  # the message is not lost, and neither are the turns
    terminal.process.send(CTRL_C)
    terminal.wait_for(READY)
    number = int(command(terminal, "/tokens", r"in (\d) turns; ")[1])
    assert number >= 2
    clear(terminal)
    terminal.process.send("next" + ENTER)
    terminal.wait_for(r"d, a, s: *\s*\Z")
    terminal.process.send("d" + ENTER)
    terminal.wait_for(r"d, a, s: d *\n(?s:.*)\[[\d,]+ tokens")
    terminal.wait_for(READY)
    dropped = r"in (\d) turns, of which the model\s+does\s+not\s+read\s+the\s+oldest\s+(\d)"
    after = command(terminal, "/tokens", dropped)
    assert int(after[1]) == number + 1 and int(after[2]) >= 1
