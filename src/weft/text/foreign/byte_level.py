"""GPT-2's vocab.json and merges.txt -> a byte-level BPE backend (Radford 2019).

Text is cut into words by a pattern, each word is spelled in letters that stand for bytes, and the
merges are applied in their order. RoBERTa and BART are the same with a begin and an end; Qwen2 cuts
by another pattern and composes characters first.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from weft.core.config import read_settings, read_text
from weft.core.errors import DataError
from weft.text.foreign.finish import finish
from weft.text.foreign.habits import Habits
from weft.text.foreign.side import Side
from weft.text.tokenizer import Tokenizer

VOCABULARY, MERGES = "vocab.json", "merges.txt"
SPACE_LETTER = "\u0120"


def load(folder: Path, side: Side, habits: Habits) -> Tokenizer:
    vocabulary = read_vocabulary(folder / VOCABULARY)
    if not any(SPACE_LETTER in token for token in vocabulary):
        raise DataError(
            f"no token has the letter {SPACE_LETTER!r}, so this is not byte-level BPE. Put the "
            "tokenizer.json of this model beside it.",
            folder / VOCABULARY,
        )
    merges = read_merges(folder / MERGES, vocabulary)
    backend = Backend(models.BPE(vocabulary, merges))
    if habits.compose:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = build_pre_tokenizer(side, habits)
    backend.decoder = decoders.ByteLevel()
    return finish(backend, side, habits)


def build_pre_tokenizer(side: Side, habits: Habits) -> pre_tokenizers.PreTokenizer:
    add_space = side.flag("add_prefix_space", False)
    if habits.words is None:
        return pre_tokenizers.ByteLevel(add_prefix_space=add_space)
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(habits.words), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=add_space, use_regex=False),
        ]
    )


def read_vocabulary(path: Path) -> dict[str, int]:
    """Token -> id; a DataError for what is no such table."""
    values = read_settings(path)
    for token, index in values.items():
        if not isinstance(index, int) or not 0 <= index < 1 << 31:
            raise DataError(f"the id of {token!r} is {index!r}: whole numbers are ids.", path)
    if len(set(values.values())) != len(values):
        raise DataError("two tokens have the same id. Fetch the file again.", path)
    return values


def read_merges(path: Path, vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """The pairs in their order; a DataError names the first line that is none."""
    merges = []
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        parts = line.removesuffix("\r").split(" ")
        if parts == [""] or line.startswith("#version"):
            continue
        if len(parts) != 2 or not {*parts, "".join(parts)} <= vocabulary.keys():
            raise DataError(
                f"{line!r} is not a pair of tokens whose join is a token too. The file does not "
                f"belong to {VOCABULARY}.",
                path,
                number,
            )
        merges.append((parts[0], parts[1]))
    return merges
