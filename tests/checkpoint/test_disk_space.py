"""What will be written is reported, and refused if the disk has less."""

import gzip
from collections import namedtuple

import pytest

from tests.engine.tiny import tiny
from tests.training.material import files, recipe
from weft.checkpoint import disk_space
from weft.checkpoint.disk_space import check_space, folder_bytes, format_bytes
from weft.checkpoint.formats import convert
from weft.checkpoint.tensor_source import unique_state
from weft.checkpoint.weft_folder import load_folder, save_folder
from weft.core.errors import DataError
from weft.training.data.files import TrainingFiles
from weft.training.run import run_training

Usage = namedtuple("Usage", "total used free")


def limit(monkeypatch, free):
    monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda path: Usage(10**12, 0, free))


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1 kB"), (1234567, "1.23 MB"), (5 * 10**9, "5 GB")],
)
def test_sizes_are_readable(num_bytes, text):
    assert format_bytes(num_bytes) == text


def test_what_fits_is_reported_and_what_does_not_is_refused(tmp_path, monkeypatch):
    limit(monkeypatch, 2000)
    lines = []
    check_space(tmp_path / "a" / "b", 1500, lines.append, "a test")
    assert lines == [f"{tmp_path / 'a' / 'b'}: writing up to 1.5 kB (a test); 2 kB are free"]
    with pytest.raises(
        DataError, match=r"needs 2.5 kB of disk space, but 2 kB are free. Free some"
    ):
        check_space(tmp_path / "a", 2500)


def test_a_run_states_its_bytes_and_stays_below_them(tmp_path, monkeypatch):
    out, lines, sizes, stated = tmp_path / "run", [], [], []
    limit(monkeypatch, 10**9)

    def record(path, num_bytes, report, what):
        stated.append(num_bytes)
        check_space(path, num_bytes, report, what)

    monkeypatch.setattr("weft.training.run.check_space", record)
    run_training(
        recipe(save_every=2, average=3),
        files(tmp_path),
        out,
        lambda progress: sizes.append(folder_bytes(out / "checkpoints")),
        report=lines.append,
    )
    assert max(sizes) < stated[0] < 2 * max(sizes)
    (line,) = (line for line in lines if line.startswith(f"{out}: writing up to "))
    assert f"writing up to {format_bytes(stated[0])} (5 checkpoints and" in line
    assert line.endswith("the model); 1 GB are free")


@pytest.mark.parametrize("documents", ["line", "file"])
@pytest.mark.parametrize("valid_share", [0.0, 0.3])
def test_the_stated_bytes_include_the_token_ids_of_a_text_run(
    tmp_path, monkeypatch, documents, valid_share
):
    text = "a\nb\n" * 50 + "".join(f"Zeile {number}: Öl \U0001f600\n" for number in range(90))
    (tmp_path / "text").write_text(text)
    (tmp_path / "text.gz").write_bytes(gzip.compress(text.encode()))
    corpus = TrainingFiles("lm", (tmp_path / "text", tmp_path / "text.gz"))
    settings = recipe(steps=1, save_every=1, documents=documents, valid_share=valid_share)
    out, stated, sizes = tmp_path / "run", [], []
    monkeypatch.setattr("weft.training.run.check_space", lambda *args: stated.append(args[1:]))
    # the ids are complete when the first step is reported
    run_training(settings, corpus, out, lambda progress: sizes.append(folder_bytes(out / "tokens")))
    num_bytes, _, what = stated[0]
    assert what == "token ids, 2 checkpoints and the model"
    weights = 4 * sum(tensor.numel() for tensor in unique_state(load_folder(out).model).values())
    assert sizes[0] <= num_bytes - 7 * weights < 5 * sizes[0]


def test_a_text_run_that_does_not_fit_is_refused_before_its_ids_are_written(tmp_path, monkeypatch):
    (tmp_path / "text").write_text("one two three\n" * 100)
    limit(monkeypatch, 1000)
    with pytest.raises(DataError, match=r"run: needs .* \(token ids, .* but 1 kB are free"):
        run_training(recipe(), TrainingFiles("lm", (tmp_path / "text",)), tmp_path / "run")
    assert not (tmp_path / "run" / "tokens").exists()


def test_a_run_that_does_not_fit_is_refused_before_it_starts(tmp_path, monkeypatch):
    limit(monkeypatch, 1000)
    with pytest.raises(DataError, match=r"run: needs .* but 1 kB are free"):
        run_training(recipe(), files(tmp_path), tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()
    monkeypatch.undo()
    run_training(recipe(), files(tmp_path), tmp_path / "run")


@pytest.mark.parametrize(
    ("to", "dtype", "size"), [("weft", None, 4), ("hf", None, 4), ("gguf", "q8_0", 34 / 32)]
)
def test_a_conversion_states_its_bytes_and_is_refused_if_they_do_not_fit(
    tmp_path, monkeypatch, to, dtype, size
):
    checkpoint = tiny("decoder")
    save_folder(tmp_path / "lm", checkpoint)
    num_bytes = sum(weight.numel() for weight in checkpoint.model.parameters()) * size
    lines = []
    if to == "weft":
        convert(tmp_path / "lm", tmp_path / "out", to, report=lines.append)
        expected = f"{tmp_path / 'out'}: writing up to {format_bytes(int(num_bytes))}; "
        assert lines[0].startswith(expected)
        assert (tmp_path / "out" / "model.safetensors").stat().st_size >= num_bytes
    limit(monkeypatch, 100)
    expected = f"two: needs {format_bytes(int(num_bytes))} of disk space, but 100 bytes are free"
    with pytest.raises(DataError, match=expected):
        convert(tmp_path / "lm", tmp_path / "two", to, dtype=dtype)
    assert not (tmp_path / "two").exists()
