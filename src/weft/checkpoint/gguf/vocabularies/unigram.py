r"""tokenizer.ggml.model = t5: SentencePiece's unigram model (T5, XLM-R), pieces with log
probabilities.

SentencePiece excludes control tokens from its search; in the `tokenizers` library they are pieces
like others, so that text which spells one would become it. A split after the first letter of such
text prevents that.
"""

from __future__ import annotations

import base64
import re
from typing import Any

import numpy as np
from tokenizers import Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from weft.checkpoint.gguf.header import BYTE, CONTROL, UNKNOWN
from weft.checkpoint.gguf.vocabularies.base import (
    SPACE_MARK,
    BosEosFrame,
    GGUFVocabulary,
    TokenizerParts,
    TokenizerStep,
    add_special_tokens,
    cannot_write,
    read_frame,
)
from weft.checkpoint.gguf.vocabularies.sentencepiece import space_decoder
from weft.core.errors import DataError

SPACE_RUNS, OUTER_SPACES = " {2,}", r"\A +| +\z"
"""Spaces that SentencePiece removes: all but one of a run, and those around a text."""
BYTE_LOOKALIKE = r"<(?=0x[0-9A-F]{2}>)"


def read(vocabulary: GGUFVocabulary) -> tuple[Backend, BosEosFrame]:
    """The tokenizer, and whether BOS and EOS are added."""
    scores = vocabulary.scores()
    if scores is None:
        raise DataError(
            "has no tokenizer.ggml.scores, which this kind of tokenizer needs. Use another file.",
            vocabulary.path,
        )
    model = models.Unigram(
        list(zip(vocabulary.tokens, scores, strict=True)),
        unk_id=vocabulary.ids.get("unknown", 0),
        byte_fallback=bool(vocabulary.of_type(BYTE)),
    )
    backend = Backend(model)
    has_prefix = vocabulary.flag("add_space_prefix", True)
    removes_spaces = vocabulary.flag("remove_extra_whitespaces", False)
    backend.normalizer = normalizers.Sequence(
        [
            *read_charsmap(vocabulary),
            *(remove_extra_spaces() if removes_spaces else []),
            *([normalizers.Prepend(SPACE_MARK)] if has_prefix else []),
            normalizers.Replace(" ", SPACE_MARK),
        ]
    )
    backend.pre_tokenizer = pre_tokenizers.Split(
        Regex(control_lookalikes(vocabulary)), "merged_with_previous"
    )
    backend.decoder = space_decoder(has_prefix)
    add_special_tokens(backend, vocabulary)
    return backend, read_frame(vocabulary, begin=False, end=True)


def remove_extra_spaces() -> list[normalizers.Normalizer]:
    return [
        normalizers.Replace(Regex(SPACE_RUNS), " "),
        normalizers.Replace(Regex(OUTER_SPACES), ""),
    ]


def read_charsmap(vocabulary: GGUFVocabulary) -> list[normalizers.Normalizer]:
    """SentencePiece's table of character normalization."""
    values = vocabulary.get("precompiled_charsmap")
    if values is None or len(values) == 0:
        return []
    try:
        table = np.asarray(values, dtype=np.int64).astype(np.uint8).tobytes()
        # the table starts with the length of its first part, which the library does not check
        length = int.from_bytes(table[:4], "little")
        if length % 4 or length >= len(table):
            raise ValueError("its first number is not a length")
        return [normalizers.Precompiled(table)]
    except Exception as error:  # the library raises nothing narrower
        raise DataError(
            f"tokenizer.ggml.precompiled_charsmap cannot be used ({error}). Use another file.",
            vocabulary.path,
        ) from None


def control_lookalikes(vocabulary: GGUFVocabulary) -> str:
    """Pattern of the first letter of text that spells a control, unknown or byte token."""
    names = [vocabulary.tokens[index] for index in vocabulary.of_type(CONTROL, UNKNOWN)]
    patterns = [f"{re.escape(n[0])}(?={re.escape(n[1:])})" for n in names if len(n) > 1]
    return "|".join([*patterns, BYTE_LOOKALIKE])


def matches(parts: TokenizerParts) -> bool:
    steps = [*parts.steps, *parts.decoders]
    return parts.model["type"] == "Unigram" and any(SPACE_MARK in str(step) for step in steps)


def write(parts: TokenizerParts, tokens: list[str]) -> dict[str, Any]:
    """Metadata of a unigram model; a UsageError for steps that GGUF cannot express."""
    vocab = parts.model["vocab"]
    lowest = min(score for _, score in vocab)
    scores = [float(score) for _, score in vocab]
    values = {
        "model": "t5",
        "pre": "default",
        "scores": scores + [lowest] * (len(tokens) - len(scores)),
        "unknown_token_id": parts.model["unk_id"],
        **write_space_flags(parts),
    }
    charsmaps = [s["precompiled_charsmap"] for s in parts.normalizers if is_charsmap(s)]
    if charsmaps:
        values["precompiled_charsmap"] = base64.b64decode(charsmaps[0])
    return values


def is_charsmap(step: TokenizerStep) -> bool:
    return step["type"] == "Precompiled"


def write_space_flags(parts: TokenizerParts) -> dict[str, bool]:
    """How spaces are treated."""
    has_prefix, removes_spaces, others = False, False, []
    for step in parts.steps:
        kind, pattern = step["type"], step.get("pattern", {})
        if kind == "Prepend" and step["prepend"] == SPACE_MARK:
            has_prefix = True
        elif kind == "Metaspace" and step["replacement"] == SPACE_MARK:
            has_prefix = step["prepend_scheme"] != "never"
        elif kind == "WhitespaceSplit" or pattern == {"Regex": SPACE_RUNS}:
            removes_spaces = True
        elif not (is_charsmap(step) or kind == "Strip" or is_implied(step)):
            others.append(kind)
    if others:
        raise cannot_write(f"it has steps besides those for spaces ({', '.join(others)})")
    return {"add_space_prefix": has_prefix, "remove_extra_whitespaces": removes_spaces}


def is_implied(step: TokenizerStep) -> bool:
    """Steps of `read` that follow from others: spaces to marks, outer spaces, lookalikes."""
    pattern = step.get("pattern", {})
    if step["type"] == "Replace":
        return pattern in ({"String": " "}, {"Regex": OUTER_SPACES})
    return step["type"] == "Split" and r"<(?=0x" in pattern.get("Regex", "")
