"""Corpora: docs/data.md describes the files, its split works, and tests without one are skipped."""

from __future__ import annotations

import gzip
import hashlib
import re
from pathlib import Path

import pytest

from tests.corpora import ROOT, corpus

PAGE = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
FILES = re.findall(r"^\| `(\S+/\S+)` \| (\d+) \| (\d+) \| `(\w{64})` \|$", PAGE, re.MULTILINE)
PARTS = ("train", "valid", "test")
TEXT = {".md", ".toml", ".txt", ".py", ".sh", ".cpp", ".h", ".js", ".css", ".html", ".json", ""}


def text_files() -> list[Path]:
    """Files of the repository that people write."""
    folders = ("src", "tests", "docs", "recipes", "deploy", ".ci")
    inside = (path for folder in folders for path in (ROOT / folder).rglob("*"))
    files = [path for path in (*inside, *ROOT.iterdir()) if path.is_file()]
    return [path for path in files if path.suffix in TEXT and path.name != ".git"]


def test_no_file_names_a_folder_beside_the_repository() -> None:
    beside = "shared"
    pattern = re.compile(rf"\.\./{beside}|{beside}/data|[\"']{beside}[\"'] / [\"']data")
    files = text_files()
    assert len(files) > 500
    naming = [
        path.relative_to(ROOT).as_posix()
        for path in files
        if pattern.search(path.read_text(encoding="utf-8", errors="replace"))
    ]
    assert naming == []


@pytest.mark.parametrize("name", ["multi30k", "tatoeba", "shakespeare", "marian"])
def test_a_recipe_with_a_corpus_says_where_it_is(name: str) -> None:
    comments = (ROOT / "recipes" / f"{name}.toml").read_text(encoding="utf-8")
    assert "${WEFT_DATA:-data}/" in comments and "docs/data.md" in comments


@pytest.mark.parametrize(("name", "lines", "size", "digest"), FILES)
def test_a_corpus_is_the_one_that_the_page_describes(
    name: str, lines: str, size: str, digest: str
) -> None:
    data = corpus(name).read_bytes()
    text = gzip.decompress(data) if name.endswith(".gz") else data
    assert (len(text), text.count(b"\n")) == (int(size), int(lines))
    assert hashlib.sha256(text).hexdigest() == digest


def test_the_page_describes_ten_files() -> None:
    assert len(FILES) == 10


def test_a_missing_corpus_skips_the_test_and_names_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_DATA", str(tmp_path))
    with pytest.raises(pytest.skip.Exception, match=r"needs multi30k/val\.en\.gz in .*data\.md"):
        corpus("multi30k/val.en.gz")
    (tmp_path / "multi30k").mkdir()
    (tmp_path / "multi30k" / "val.en.gz").touch()
    assert corpus("multi30k/val.en.gz") == tmp_path / "multi30k" / "val.en.gz"


def test_the_split_keeps_all_translations_of_a_sentence_in_one_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    pairs = [f"Sentence {i // 2}.\t句子{i}。\tCC-BY" for i in range(400)]
    (tmp_path / "cmn.txt").write_text("\n".join(pairs) + "\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEFT_DATA", "corpora")
    exec(compile(program, "data.md", "exec"), {})
    paths = [Path("corpora", "tatoeba-zh-en", f"{part}.tsv.gz") for part in PARTS]
    parts = [gzip.decompress(path.read_bytes()).decode().splitlines() for path in paths]
    assert sorted(line for lines in parts for line in lines) == sorted(pairs)
    english = [{line.split("\t")[0] for line in lines} for lines in parts]
    assert [len(one) for one in english] == [190, 5, 5] and len(set.union(*english)) == 200
    assert "train: 380 pairs" in capsys.readouterr().out
