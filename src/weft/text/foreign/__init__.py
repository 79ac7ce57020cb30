"""Tokenizers of Hugging Face folders: whatever files there are -> `Tokenizer`. One file a format:

tokenizer_json       tokenizer.json, which says everything
marian               source.spm, target.spm and vocab.json: two sides, one table of ids
sentencepiece        tokenizer.model, spiece.model or sentencepiece.bpe.model
byte_level           vocab.json and merges.txt
wordpiece            vocab.txt

They share side (the files beside them), habits (what a family leaves unsaid) and finish (added
tokens, begin and end). SentencePiece's files are read by sentencepiece_file, on wire and charsmap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from weft.core.config import read_settings
from weft.core.errors import DataError
from weft.text.foreign import byte_level, marian, sentencepiece, tokenizer_json, wordpiece
from weft.text.foreign.habits import HABITS, OTHER_WAYS, Habits, family_name
from weft.text.foreign.side import Side, read_side
from weft.text.storage import FILE
from weft.text.tokenizer import Tokenizer

CONFIG = "config.json"


@dataclass(frozen=True)
class Format:
    """A way to store a tokenizer."""

    files: tuple[str, ...]
    """A folder with all of them has this format."""
    load: Callable[[Path, Side, Habits], Tokenizer]
    usual: str
    """The family that it is read as where nobody names one."""


FORMATS: dict[str, Format] = {
    "tokenizer_json": Format((FILE,), tokenizer_json.load, "gpt2"),
    "marian": Format((marian.SOURCE, marian.TARGET, marian.VOCABULARY), marian.load, "marian"),
    "sentencepiece": Format(("tokenizer.model",), sentencepiece.load, "llama"),
    "spiece": Format(("spiece.model",), sentencepiece.load, "t5"),
    "fairseq": Format((sentencepiece.FAIRSEQ_FILE,), sentencepiece.load, "xlmroberta"),
    "byte_level": Format((byte_level.VOCABULARY, byte_level.MERGES), byte_level.load, "gpt2"),
    "wordpiece": Format((wordpiece.FILE,), wordpiece.load, "bert"),
}
"""In the order in which a folder is asked for them."""


def load_tokenizer(folder: Path, model_type: str | None = None) -> Tokenizer:
    """The tokenizer of a folder. `model_type` (None: the one in its config.json, if there is one)
    decides only what the tokenizer's own files leave open."""
    folder = Path(folder)
    found = find_format(folder)
    if found is None:
        sets = [" with ".join(kind.files) for kind in FORMATS.values()]
        raise DataError(f"has no tokenizer. Looked for {', '.join(sets)}.", folder)
    side = read_side(folder)
    family = family_name(side.settings, model_type or read_type(folder))
    if family in OTHER_WAYS and found != "tokenizer_json":
        raise DataError(
            f"the files of a {family} tokenizer are read in a way of their own, which Weft does "
            "not know. Put its tokenizer.json beside them.",
            folder,
        )
    habits = HABITS.get(family or "", HABITS[FORMATS[found].usual])
    return FORMATS[found].load(folder, side, habits)


def read_type(folder: Path) -> str | None:
    told = read_settings(folder / CONFIG).get("model_type") if (folder / CONFIG).is_file() else None
    return told if isinstance(told, str) else None


def find_format(folder: Path) -> str | None:
    """The first format whose files are all there."""
    for name, kind in FORMATS.items():
        if all((folder / file).is_file() for file in kind.files):
            return name
    return None
