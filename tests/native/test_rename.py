"""Two folders exchange their names, or nothing changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.native import rename
from weft.native.rename import exchange_names, renameat2


@pytest.mark.skipif(renameat2() is None, reason="the C library has no renameat2")
def test_folders_exchange_their_names(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    if not exchange_names(tmp_path / "first", tmp_path / "second"):
        pytest.skip("the file system has no exchange")
    assert (tmp_path / "first" / "second").exists() and (tmp_path / "second" / "first").exists()
    with pytest.raises(FileNotFoundError, match="nowhere"):
        exchange_names(tmp_path / "first", tmp_path / "nowhere")


def test_a_system_without_it_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rename, "renameat2", lambda: None)
    (tmp_path / "first").touch()
    assert not exchange_names(tmp_path / "first", tmp_path / "second")
    assert [one.name for one in tmp_path.iterdir()] == ["first"]
