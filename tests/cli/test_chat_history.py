"""Typed messages that are kept for the next chat."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from weft.cli import chat_history
from weft.cli.chat_history import ChatHistory, history_path


def newest_first(path: Path) -> list[str]:
    return list(ChatHistory(path).load_history_strings())


def test_messages_are_kept_and_only_their_owner_can_read_them(tmp_path: Path) -> None:
    path = tmp_path / "state" / "chat_history"
    for text in ("a cat", "two\n\nlines", "\u5b83"):
        ChatHistory(path).store_string(text)
    assert newest_first(path) == ["\u5b83", "two\n\nlines", "a cat"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    ChatHistory(path).store_string("more")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_large_or_damaged_file_can_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "chat_history"
    path.write_bytes(b'"old"\n\xff{\n3\n"new"\n')
    assert newest_first(path) == ["new", "old"]
    monkeypatch.setattr(chat_history, "MAX_BYTES", 10)
    assert newest_first(path) == ["new"]
    assert path.read_bytes() == b'3\n"new"\n' and list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_written_is_one_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "state").write_text("a file where a folder should be")
    history = ChatHistory(tmp_path / "state" / "chat_history")
    history.store_string("a")
    history.store_string("b")
    warning = capsys.readouterr().err
    assert "The messages of this chat are not kept." in warning and warning.count("\n") == 1


def test_the_place_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WEFT_STATE", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert history_path() == Path.home() / ".local" / "state" / "weft" / "chat_history"
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert history_path() == Path("/state/weft/chat_history")
    monkeypatch.setenv("WEFT_STATE", "/mine")
    assert history_path() == Path("/mine/chat_history")
