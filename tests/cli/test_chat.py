"""`weft chat` without a terminal: messages from the command line and from standard input, --json,
exit codes, and what is refused."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import weft
from tests.engine.tiny import tiny_folder
from weft.checkpoint.weft_folder import TEMPLATE_FILE
from weft.cli.app import main

TURNS = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }} {% endfor %}a:"
TEXT = "a cat\n\nthe dog\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tiny_folder(tmp_path_factory.mktemp("lm") / "chat", "decoder")
    (path / TEMPLATE_FILE).write_text(TURNS)
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> weft.Model:
    return weft.load(folder)


def expected(model: weft.Model, prompt: str, max_tokens: int) -> str:
    return model.generate(prompt, max_tokens, temperature=0.0)


def test_piped_input_is_one_message_with_its_empty_lines(
    folder: Path, model: weft.Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(TEXT))
    assert main(["chat", str(folder), "--max-tokens", "3"]) == 0
    shown = capsys.readouterr()
    assert shown.out == expected(model, f"u:{TEXT.strip()} a:", 3) + "\n"
    assert "3 tokens" in shown.err and "cached 0]" in shown.err


def test_with_lines_each_line_is_a_message_of_one_conversation(
    folder: Path, model: weft.Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(TEXT))
    assert main(["chat", str(folder), "--json", "--lines", "--max-tokens", "3"]) == 0
    turns = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [turn["role"] for turn in turns] == ["assistant", "assistant"]
    assert turns[0]["content"] == expected(model, "u:a cat a:", 3)
    prompt = f"u:a cat a:{turns[0]['content']} u:the dog a:"
    assert turns[1]["content"] == expected(model, prompt, 3)
    assert turns[1]["usage"]["cached_tokens"] < turns[1]["usage"]["prompt_tokens"]
    assert turns[1]["usage"]["completion_tokens"] <= 3


def test_a_message_on_the_command_line_is_answered_once(
    folder: Path, model: weft.Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr("sys.stdin", None)  # not read
    assert main(["chat", str(folder), "a cat", "--max-tokens", "3", "--system", "the"]) == 0
    assert capsys.readouterr().out == expected(model, "s:the u:a cat a:", 3) + "\n"


def test_a_message_is_never_a_command_without_a_terminal(
    folder: Path, model: weft.Model, capsys: pytest.CaptureFixture
) -> None:
    assert main(["chat", str(folder), "/undo", "--max-tokens", "3"]) == 0
    assert capsys.readouterr().out == expected(model, "u:/undo a:", 3) + "\n"


def test_a_turn_has_what_was_asked_for_and_says_when_it_was_cut(
    folder: Path, capsys: pytest.CaptureFixture
) -> None:
    asked = ["chat", str(folder), "a cat", "--max-tokens", "3", "--regex", "[a-c]{9}"]
    assert main([*asked, "--json", "--logprobs", "1"]) == 0
    turn = json.loads(capsys.readouterr().out)
    assert list(turn) == ["role", "content", "finish_reason", "logprobs", "usage"]
    assert turn["finish_reason"] == "length" and set(turn["content"]) <= set("abc")
    assert len(turn["logprobs"]) == 3
    assert main(asked) == 0
    shown = capsys.readouterr()
    assert shown.out == turn["content"] + "\n"
    assert "[stopped at --max-tokens after 3 tokens]" in shown.err
    assert main([*asked, "--logprobs", "1"]) == 2
    assert "only --json prints log-probabilities" in capsys.readouterr().err


def test_an_answer_may_fill_the_context_and_the_next_message_does_not_fit(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("a cat\nthe dog\n"))
    assert main(["chat", str(folder), "--lines", "--regex", "[a-c]{90}"]) == 2
    shown = capsys.readouterr()
    assert set(shown.out.strip()) <= set("abc") and len(shown.out) > 20
    assert "[stopped: the context of 40 tokens is full]" in shown.err
    assert "but the context has 40, answer included. Shorten the message" in shown.err


@pytest.mark.parametrize(
    ("args", "text", "message"),
    [
        ([], "\n \n", "the message is empty: it must have at least one character"),
        ([""], "", "the message is empty"),
        (["a", "--lines"], "", "MESSAGE is 'a' and --lines is set: only one of them"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_weights_are_read(
    args: list[str],
    text: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    folder = tiny_folder(tmp_path / "m", "decoder")
    (folder / "model.safetensors").unlink()
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert main(["chat", str(folder), *args]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(message) and shown.err.count("\n") == 1 and shown.out == ""


def test_a_model_without_a_template_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert main(["chat", str(tiny_folder(tmp_path / "m", "decoder")), "a"]) == 2
    assert "has no chat template" in capsys.readouterr().err


def test_ctrl_c_in_a_pipe_ends_with_130(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "m", "decoder", max_len=16384)
    (folder / TEMPLATE_FILE).write_text(TURNS)
    words = [str(folder), "a", "--regex", "[a-z]{30000}", "--max-tokens", "16000"]
    with subprocess.Popen(
        [sys.executable, "-m", "weft", "chat", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.read(20)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        text = process.stdout.read()
        assert process.wait(timeout=60) == 130
        assert time.monotonic() - began < 10 and len(text) < 16000
        assert b"Traceback" not in process.stderr.read()


def test_help_imports_neither_torch_nor_prompt_toolkit() -> None:
    code = (
        "import sys; from weft.cli import main; code = main(['chat', '--help']);"
        "sys.exit(code or 3 * ('prompt_toolkit' in sys.modules or 'torch' in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
