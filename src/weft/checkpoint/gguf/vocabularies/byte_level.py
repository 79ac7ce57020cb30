"""tokenizer.ggml.model = gpt2: byte-level BPE, cut by the kind that tokenizer.ggml.pre names."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from weft.checkpoint.gguf.vocabularies.base import (
    BosEosFrame,
    GGUFVocabulary,
    add_tokens,
    read_frame,
)
from weft.checkpoint.gguf.vocabularies.pieces import Step, TokenizerParts, cannot_write
from weft.checkpoint.gguf.vocabularies.splits import ALIASES, GPT2, PUNCTUATION, SPLITS, Split
from weft.core.errors import DataError

log = logging.getLogger(__name__)


def read(words: GGUFVocabulary) -> tuple[Backend, BosEosFrame]:
    """The tokenizer, and what it puts around a text."""
    split = split_of(words)
    model = models.BPE(words.vocabulary(), read_merges(words), ignore_merges=split.whole_words)
    backend = Backend(model)
    if split.nfc:
        backend.normalizer = normalizers.NFC()
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    steps = [*cuts(split.patterns), to_bytes, *cuts(split.letters)]
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    add_tokens(backend, words)
    return backend, read_frame(words, begin=split.add_begin, end=False)


def cuts(patterns: Sequence[str]) -> list[pre_tokenizers.PreTokenizer]:
    return [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]


def split_of(words: GGUFVocabulary) -> Split:
    name = words.get("pre")
    if name is None:
        log.warning(
            "%s: tokenizer.ggml.pre is missing: cutting text as llama.cpp does by default, which "
            "may not be the model's own way",
            words.path,
        )
        return SPLITS["default"]
    known = ", ".join([*SPLITS, *ALIASES])
    if not isinstance(name, str) or ALIASES.get(name, name) not in SPLITS:
        words.fail("pre", repr(name), f"one of {known}")
    return SPLITS[ALIASES.get(name, name)]


def read_merges(words: GGUFVocabulary) -> list[tuple[str, str]]:
    """Pairs that are joined, first ones first."""
    given = words.get("merges")
    if not isinstance(given, list):
        raise DataError(
            "has no tokenizer.ggml.merges, which this kind of tokenizer needs. Use another file.",
            words.path,
        )
    merges = [tuple(merge.split(" ")) for merge in given]
    wrong = next((m for m in merges if len(m) != 2), None)
    if wrong is not None:
        words.fail("merges", f"{' '.join(wrong)!r} in one place", "two pieces with a space between")
    return [(left, right) for left, right in merges]


def write(parts: TokenizerParts, tokens: list[str]) -> dict[str, Any]:
    """Metadata of a byte-level BPE; a UsageError where no kind of cutting is its own."""
    return {
        "model": "gpt2",
        "pre": name_of(parts),
        "merges": [" ".join(merge) for merge in parts.model["merges"]],
    }


def matches(parts: TokenizerParts) -> bool:
    return parts.model["type"] == "BPE" and "ByteLevel" in [s["type"] for s in parts.decoders]


def name_of(parts: TokenizerParts) -> str:
    """The kind of cutting that does what this tokenizer does."""
    normal_forms = [step["type"] for step in parts.normalizers]
    kinds = [step["type"] for step in parts.splits]
    # the step that writes bytes as letters may cut before it does so
    border = kinds.index("ByteLevel") + 1 if "ByteLevel" in kinds else len(kinds)
    found = Split(
        tuple(p for step in parts.splits[:border] for p in patterns_of(step)),
        letters=tuple(p for step in parts.splits[border:] for p in patterns_of(step)),
        nfc=normal_forms == ["NFC"],
        whole_words=bool(parts.model.get("ignore_merges")),
    )
    for name, split in SPLITS.items():
        if replace(split, add_begin=False) == found and normal_forms in ([], ["NFC"]):
            return name
    raise cannot_write(
        f"the way it cuts text is none that GGUF has a name for ({', '.join(SPLITS)})"
    )


def patterns_of(step: Step) -> list[str]:
    """A step of a pre-tokeniser as patterns whose matches stand alone."""
    kind = step["type"]
    if kind == "ByteLevel" and not step["add_prefix_space"]:
        return [GPT2] if step.get("use_regex", True) else []
    if kind == "Digits":
        return [r"\p{N}" if step["individual_digits"] else r"\p{N}+"]
    if kind == "Punctuation" and step["behavior"] == "Contiguous":
        return [PUNCTUATION]
    if kind == "Split" and step["behavior"] == "Isolated" and not step["invert"]:
        pattern = step["pattern"]
        return [pattern["Regex"] if "Regex" in pattern else re.escape(pattern["String"])]
    raise cannot_write(f"it cuts text by {kind} with settings that GGUF has no name for")
