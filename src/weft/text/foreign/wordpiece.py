"""BERT's vocab.txt (one piece a line, its number the id) -> a WordPiece backend (Wu 2016).

Text is cleaned, cut at spaces and punctuation, and lower-cased where tokenizer_config.json says so.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers

from weft.core.config import read_text
from weft.core.errors import DataError
from weft.text.foreign.finish import finish
from weft.text.foreign.habits import Habits
from weft.text.foreign.side import Side
from weft.text.specials import content
from weft.text.tokenizer import Tokenizer

FILE = "vocab.txt"
WAYS = {
    "do_basic_tokenize": True,
    "never_split": None,
    "word_tokenizer_type": "basic",
    "subword_tokenizer_type": "wordpiece",
}
"""Settings that change how text is cut, and the only value of each that is known here."""


def load(folder: Path, side: Side, habits: Habits) -> Tokenizer:
    for name, known in WAYS.items():
        if side.settings.get(name) not in (None, known):
            value = side.settings[name]
            raise DataError(f"{name} is {value!r}: only {known!r} is known here.", side.path)
    vocabulary = read_vocabulary(folder / FILE)
    unknown = content(side.settings.get("unk_token") or habits.names.unknown or "[UNK]")
    if unknown not in vocabulary:
        raise DataError(f"has no line {unknown!r}, the token for unknown words.", folder / FILE)
    backend = Backend(models.WordPiece(vocabulary, unk_token=unknown))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=side.flag("tokenize_chinese_chars", True),
        strip_accents=side.told("strip_accents"),
        lowercase=side.flag("do_lower_case", True),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    return finish(backend, side, habits)


def read_vocabulary(path: Path) -> dict[str, int]:
    """Piece -> line number from 0; a piece that is there twice has its last line."""
    # only real line ends: splitlines() would also cut at U+2028, which is a piece in some files
    lines = read_text(path).removesuffix("\n").split("\n")
    return {line.removesuffix("\r"): index for index, line in enumerate(lines)}
