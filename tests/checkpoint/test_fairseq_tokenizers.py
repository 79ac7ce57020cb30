"""fairseq's dictionaries and merges as a tokenizer: ids as subword-nmt and fairseq give them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from weft.checkpoint.fairseq_files import source_tokenizer, target_tokenizer
from weft.checkpoint.fairseq_header import Merge, read_dictionary, read_merges
from weft.core.errors import DataError
from weft.text.tokenizer import Tokenizer

MERGES = [("a", "b"), ("b", "c</w>"), ("ab", "a"), ("a", "a</w>"), ("aba", "bc</w>"), ("c", "c")]


def subword_nmt(word: str, merges: list[Merge]) -> list[str]:
    """The paper's algorithm as subword-nmt 0.2 has it: all places of the best pair at once."""
    ranks = {merge: rank for rank, merge in reversed(list(enumerate(merges)))}
    symbols = [*word[:-1], word[-1] + "</w>"]
    while len(symbols) > 1:
        pairs = {(a, b) for a, b in zip(symbols, symbols[1:], strict=False) if (a, b) in ranks}
        if not pairs:
            break
        best, joined, i = min(pairs, key=ranks.__getitem__), [], 0
        while i < len(symbols):
            is_best = tuple(symbols[i : i + 2]) == best
            joined.append("".join(symbols[i : i + 2]) if is_best else symbols[i])
            i += 2 if is_best else 1
        symbols = joined
    return [*[s + "@@" for s in symbols[:-1]], symbols[-1].removesuffix("</w>")]


def all_pieces(texts: list[str], merges: list[Merge]) -> list[str]:
    return sorted({p for text in texts for word in text.split() for p in subword_nmt(word, merges)})


def random_texts(letters: str, count: int) -> list[str]:
    rng = random.Random(0)
    words = ["".join(rng.choices(letters, k=rng.randint(1, 9))) for _ in range(count)]
    return [" ".join(rng.choices(words, k=rng.randint(1, 6))) for _ in range(count)]


def test_ids_are_those_of_subword_nmt_and_the_dictionary() -> None:
    texts = random_texts("abc", 200)
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *all_pieces(texts, MERGES)]
    tokenizer = source_tokenizer(pieces, MERGES)
    for text in texts:
        expected = [p for word in text.split() for p in subword_nmt(word, MERGES)]
        assert tokenizer.encode(text) == [pieces.index(p) for p in expected] + [2]
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_unknown_characters_are_unknown_words() -> None:
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "a@@", "a", "b@@", "b", "ab@@"]
    for make in (source_tokenizer, target_tokenizer):
        assert make(pieces, MERGES).encode("a\u07ca b") == [4, 3, 7, 2]


def test_spaces_of_every_kind_part_words() -> None:
    tokenizer = source_tokenizer(["<s>", "<pad>", "</s>", "<unk>", "a", "b"], [])
    assert tokenizer.encode("  a\tb \u00a0 a\n") == [4, 5, 4, 2]


def test_text_is_lowered_where_the_dictionary_has_no_capitals_or_when_told() -> None:
    small, mixed = [["<s>", "<pad>", "</s>", "<unk>", *more] for more in (["a"], ["a", "A"])]
    assert source_tokenizer(small, []).encode("A") == [4, 2]
    assert source_tokenizer(mixed, []).encode("A") == [5, 2]
    assert source_tokenizer(mixed, [], lowercase=True).encode("A") == [4, 2]
    assert source_tokenizer(small, [], lowercase=False).encode("A") == [3, 2]


def test_a_special_name_in_a_text_is_text() -> None:
    tokenizer = source_tokenizer(["<s>", "<pad>", "</s>", "<unk>", "a"], [])
    assert tokenizer.encode("a </s> a") == [4, 3, 3, 3, 3, 4, 2]
    assert (tokenizer.begin_id, tokenizer.pad_id, tokenizer.end_id) == (0, 1, 2)


def test_it_is_saved_and_loaded_as_any_other(tmp_path: Path) -> None:
    texts = random_texts("abc", 50)
    tokenizer = source_tokenizer(
        ["<s>", "<pad>", "</s>", "<unk>", *all_pieces(texts, MERGES)], MERGES
    )
    tokenizer.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.encode_batch(texts) == tokenizer.encode_batch(texts)
    assert again.special_tokens == tokenizer.special_tokens


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_dictionary_is_its_lines_behind_four_special_ids(tmp_path: Path) -> None:
    path = write(tmp_path / "dict.txt", "a@@ 9\n\u2028b 7 #fairseq:overwrite\n")
    assert read_dictionary(path) == ["<s>", "<pad>", "</s>", "<unk>", "a@@", "\u2028b"]


def test_both_forms_of_merges_are_read_and_the_first_of_two_counts(tmp_path: Path) -> None:
    nmt = write(tmp_path / "nmt", "#version: 0.2\na b\nb c</w>\na b\n")
    fast = write(tmp_path / "fast", "a b 12\nb c</w> 7\n")
    assert read_merges(nmt) == read_merges(fast) == [("a", "b"), ("b", "c</w>")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\n", "line 1: is 'a': it must be a piece and a count"),
        ("a 1\nb x\n", "line 2: is 'b x': it must be a piece and a count"),
        ("a 1\na 2\n", "has a piece twice"),
    ],
)
def test_broken_dictionaries_are_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        read_dictionary(write(tmp_path / "dict.txt", text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#version: 0.1\na b\n", "says '#version: 0.1': Weft reads version 0.2"),
        ("a b\n", "line 1: is 'a b': it must be two pieces to merge"),
        ("#version: 0.2\na\n", "line 2: is 'a': it must be two pieces"),
    ],
)
def test_broken_merges_are_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        read_merges(write(tmp_path / "codes", text))


def test_files_that_are_not_there_or_not_text_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="dict.txt: there is no such file"):
        read_dictionary(tmp_path / "dict.txt")
    (tmp_path / "codes").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="codes: is not UTF-8 text"):
        read_merges(tmp_path / "codes")
