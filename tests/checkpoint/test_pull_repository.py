"""Pulling from a hub on this machine: downloads continue, and what is damaged is not kept."""

from __future__ import annotations

import hashlib
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import weft.checkpoint.hub
from tests.checkpoint.local_hub import COMMIT, LocalHub
from tests.engine.tiny import tiny
from tests.soak.checkpoint_bases import base_folder, model_path
from weft.checkpoint.description import describe
from weft.checkpoint.hub import pull
from weft.checkpoint.hub_files import PART, RepositoryFile, is_as_stated
from weft.checkpoint.huggingface import save_hf
from weft.checkpoint.pulled_models import (
    PullRecord,
    partial_folder,
    pulled_folder,
    pulled_models,
    remove_model,
    resolve,
)
from weft.checkpoint.sha256sums import read_sums
from weft.checkpoint.verification import verify
from weft.core.errors import DataError, DiskError

WEIGHTS = "model.safetensors"
LLAMA = {
    "position": {"kind": "rotary", "layout": "halves"},
    "feedforward": {"kind": "swiglu", "width": 64},
    "norm": {"kind": "rmsnorm"},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("hf") / "model"
    save_hf(tiny("decoder", **LLAMA), folder)
    names = ("config.json", "tokenizer.json", WEIGHTS)
    others = {"README.md": b"not downloaded", "evil.pkl": b"neither"}
    return {name: (folder / name).read_bytes() for name in names} | others


@pytest.fixture
def hub(
    files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LocalHub]:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("weft.checkpoint.hub_files.RETRY_SECONDS", 0.001)
    with LocalHub(files).serving() as hub:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield hub


def test_a_repository_becomes_a_complete_folder_with_progress(hub: LocalHub) -> None:
    said, seen = list[str](), list[tuple[int, int]]()
    path = pull("org/model", said.append, lambda *counts: seen.append(counts))
    assert path == pulled_folder("org/model") == resolve("org/model")
    total = sum(len(hub.files[name]) for name in ("config.json", "tokenizer.json", WEIGHTS))
    assert any("downloading 3 files, " in line and COMMIT[:12] in line for line in said)
    assert seen[-1] == (total, total) and seen == sorted(seen)
    assert not (path / "README.md").exists() and not (path / "evil.pkl").exists()
    record = PullRecord.read(path)
    assert record is not None and (record.revision, record.family) == (COMMIT, "llama")
    assert all(check.result == "ok" for check in verify("org/model"))
    assert "pull.json" in read_sums(path)
    [model] = pulled_models()
    assert (model.name, model.state, model.revision) == ("org/model", "complete", COMMIT)
    assert pull("org/model", said.append) == path
    assert "already installed (revision 0123456789ab)" in said[-1] and len(hub.requests) == 3


def test_a_lost_connection_is_continued_where_it_ended(hub: LocalHub) -> None:
    part = len(hub.files[WEIGHTS]) // 3
    hub.cut_after, seen = part, list[tuple[int, int]]()
    path = pull("org/model", lambda line: None, lambda *counts: seen.append(counts))
    assert (path / WEIGHTS).read_bytes() == hub.files[WEIGHTS]
    ranges = [wanted for name, wanted in hub.requests if name == WEIGHTS]
    assert ranges[:3] == [None, f"bytes={part}-", f"bytes={2 * part}-"]
    assert seen[-1][0] == seen[-1][1]


def test_what_has_arrived_is_kept_and_servers_without_ranges_work(hub: LocalHub) -> None:
    hub.cut_after = 0
    with pytest.raises(DataError, match="the same command continues"):
        pull("org/model", lambda line: None)
    assert not pulled_folder("org/model").exists() and len(hub.requests) == 5
    (partial_folder("org/model") / f"{WEIGHTS}{PART}").write_bytes(hub.files[WEIGHTS][:10])
    hub.cut_after, hub.answers_ranges = None, False
    path = pull("org/model", lambda line: None)
    assert hub.requests[-1] == (WEIGHTS, "bytes=10-")
    assert (path / WEIGHTS).read_bytes() == hub.files[WEIGHTS]
    assert not partial_folder("org/model").exists()


def test_a_killed_download_continues_with_the_bytes_that_are_there(hub: LocalHub) -> None:
    partial, content = partial_folder("org/model"), hub.files[WEIGHTS]
    partial.mkdir(parents=True)
    (partial / ".commit").write_text(COMMIT)
    (partial / f"{WEIGHTS}{PART}").write_bytes(content[:100])
    (partial / "config.json").write_bytes(hub.files["config.json"])
    (partial / "of-another-file.part").write_bytes(b"x")
    [model] = pulled_models()
    assert (model.name, model.state) == ("org/model", "incomplete")
    said = list[str]()
    pull("org/model", said.append)
    assert (WEIGHTS, "bytes=100-") in hub.requests
    assert "config.json" not in dict(hub.requests)
    assert any("are here" in line for line in said)
    assert not (pulled_folder("org/model") / "of-another-file.part").exists()
    assert [model.state for model in pulled_models()] == ["complete"]


def test_a_file_without_its_data_is_downloaded_again(hub: LocalHub) -> None:
    """As after a power failure, if a file was renamed before its data was on the disk."""
    partial = partial_folder("org/model")
    partial.mkdir(parents=True)
    (partial / ".commit").write_text(COMMIT)
    for name in ("config.json", WEIGHTS):
        (partial / name).write_bytes(bytes(len(hub.files[name])))
    path = pull("org/model", lambda line: None)
    assert {name for name, _ in hub.requests} == {"config.json", "tokenizer.json", WEIGHTS}
    assert (path / "config.json").read_bytes() == hub.files["config.json"]
    assert (path / WEIGHTS).read_bytes() == hub.files[WEIGHTS]


def test_a_file_of_which_the_hub_states_no_hash_has_the_stated_size(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"{}")
    sizes = [RepositoryFile("a.json", size, None, None) for size in (2, 3)]
    assert [is_as_stated(tmp_path / "a.json", file) for file in sizes] == [True, False]


def test_the_hash_of_the_hub_is_recorded_and_not_that_of_the_disk(
    hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = weft.checkpoint.hub.finish

    def finish(name: str, revision: str, folder: Path, *rest: Any) -> None:
        (folder / WEIGHTS).write_bytes(bytes(len(hub.files[WEIGHTS])))  # after it was compared
        real(name, revision, folder, *rest)

    monkeypatch.setattr(weft.checkpoint.hub, "finish", finish)
    path = pull("org/model", lambda line: None)
    assert read_sums(path)[WEIGHTS] == hashlib.sha256(hub.files[WEIGHTS]).hexdigest()
    [check] = [check for check in verify("org/model") if check.file == WEIGHTS]
    assert check.result == "differs"


@pytest.mark.parametrize("step", ["write_sums", "install", "exchange", "remove_commit"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_an_interrupt_after_the_last_byte_loses_nothing_of_the_download(
    hub: LocalHub, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException
) -> None:
    def fail(*args: object) -> None:
        raise error

    if step == "exchange":
        pull("org/model", lambda line: None)
        hub.files["config.json"] += b"\n"
        hub.revisions["main"] = "f" * 40
        hub.revisions["f" * 40] = "f" * 40
    with monkeypatch.context() as patch:
        patch.setattr(weft.checkpoint.hub, step, fail)
        with pytest.raises((KeyboardInterrupt, DiskError)):
            pull("org/model", lambda line: None, revision=hub.revisions["main"])
    if step == "exchange":
        assert all(check.result == "ok" for check in verify("org/model")), "the old one is whole"
    hub.requests.clear()
    path = pull("org/model", lambda line: None, revision=hub.revisions["main"])
    assert hub.requests == []
    assert path == pulled_folder("org/model") and not partial_folder("org/model").exists()
    assert [model.state for model in pulled_models()] == ["complete"]
    assert {file.name for file in path.iterdir()} == {
        *("config.json", "tokenizer.json", WEIGHTS, "pull.json", "SHA256SUMS")
    }
    assert (path / "config.json").read_bytes() == hub.files["config.json"]


KILLED = """
import os, signal, sys
import huggingface_hub.constants as constants
import weft.checkpoint.hub as hub
url, step = sys.argv[1:]
constants.ENDPOINT = url
constants.HUGGINGFACE_CO_URL_TEMPLATE = url + "/{repo_id}/resolve/{revision}/{filename}"
setattr(hub, step, lambda *args: os.kill(os.getpid(), signal.SIGKILL))
hub.pull("org/model", print)
"""


@pytest.mark.parametrize("step", ["write_sums", "remove_commit"])
def test_a_kill_after_the_last_byte_loses_nothing_of_the_download(hub: LocalHub, step: str) -> None:
    command = [sys.executable, "-c", KILLED, hub.url, step]
    assert subprocess.run(command, stdout=subprocess.DEVNULL).returncode == -signal.SIGKILL
    assert len(hub.requests) == 3
    path = pull("org/model", lambda line: None)
    assert len(hub.requests) == 3
    assert all(check.result == "ok" for check in verify("org/model"))
    assert sorted(each.name for each in path.parent.iterdir()) == ["org--model"]
    assert not (path / ".commit").exists()


def test_files_of_another_commit_are_not_continued(hub: LocalHub) -> None:
    partial = partial_folder("org/model")
    partial.mkdir(parents=True)
    (partial / ".commit").write_text("f" * 40)
    (partial / f"{WEIGHTS}{PART}").write_bytes(b"of another commit")
    pull("org/model", lambda line: None)
    assert (WEIGHTS, None) in hub.requests


def test_what_has_another_hash_than_the_hub_states_is_not_kept(hub: LocalHub) -> None:
    hub.is_corrupt = True
    with pytest.raises(DataError, match="config.json: what was downloaded has the hash"):
        pull("org/model", lambda line: None)
    assert not pulled_folder("org/model").exists()
    assert not (partial_folder("org/model") / f"config.json{PART}").exists()
    hub.is_corrupt = False
    pull("org/model", lambda line: None)


def test_a_revision_is_a_branch_a_tag_or_a_commit(hub: LocalHub) -> None:
    other = "f" * 40
    hub.revisions["v2"] = other
    said = list[str]()
    path = pull("org/model", said.append)
    pull("org/model", said.append, revision=COMMIT[:10])
    assert "already installed" in said[-1]
    pull("org/model", said.append, revision="v2")
    record = PullRecord.read(path)
    assert record is not None and record.revision == other
    with pytest.raises(DataError, match="cannot be downloaded .*RevisionNotFound"):
        pull("org/model", said.append, revision="v9")
    assert (path / WEIGHTS).is_file(), "what is installed stays"
    with pytest.raises(DataError, match="org/other: cannot be downloaded .*RepositoryNotFound"):
        pull("org/other", said.append)
    assert [model.name for model in pulled_models()] == ["org/model"]


def test_a_damaged_file_is_downloaded_again_and_force_downloads_everything(hub: LocalHub) -> None:
    said = list[str]()
    path = pull("org/model", said.append)
    content = bytearray((path / WEIGHTS).read_bytes())
    content[len(content) // 2] ^= 1
    (path / WEIGHTS).write_bytes(content)
    pull("org/model", said.append)
    assert f"org/model is installed, but {WEIGHTS} differs: downloading it again" in said
    assert (path / WEIGHTS).read_bytes() == hub.files[WEIGHTS]
    (path / WEIGHTS).write_bytes(b"short")
    assert [model.state for model in pulled_models()] == ["damaged"]
    pull("org/model", said.append, force=True)
    assert [model.state for model in pulled_models()] == ["complete"]
    hub.requests.clear()
    pull("org/model", said.append, force=True)
    assert len(hub.requests) == 3


def test_a_model_that_cannot_be_loaded_is_said(hub: LocalHub) -> None:
    hub.files["config.json"] = b'{"model_type": "mamba"}'
    said = list[str]()
    pull("org/model", said.append)
    assert any(line.startswith("warning: org/model cannot be loaded: ") for line in said)
    hub.files["../outside.json"] = b"{}"
    with pytest.raises(DataError, match="has a file of this name, which is not safe"):
        pull("org/model", said.append, force=True)


def test_a_repository_of_one_gguf_file_is_that_file(hub: LocalHub) -> None:
    content = model_path(base_folder("llama gguf")).read_bytes()
    hub.files = {"model.q8.gguf": content, "README.md": b""}
    path = pull("org/model", lambda line: None)
    assert path == pulled_folder("org/model") / "model.q8.gguf" == resolve("org/model")
    assert describe("org/model").format == "gguf"
    assert [(one.family, one.state) for one in pulled_models()] == [("llama", "complete")]
    assert all(check.result == "ok" for check in verify("org/model"))


def test_removing_frees_the_bytes_of_model_and_partial_download(hub: LocalHub) -> None:
    path = pull("org/model", lambda line: None)
    shutil.copytree(path, partial_folder("org/model"))
    size = sum(file.stat().st_size for file in path.iterdir())
    assert remove_model("org/model") == 2 * size
    assert list(path.parent.iterdir()) == []
    with pytest.raises(DataError, match="org/model: no model of that name is pulled. None is"):
        remove_model("org/model")
