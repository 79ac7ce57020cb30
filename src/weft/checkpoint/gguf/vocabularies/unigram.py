r"""tokenizer.ggml.model = t5: SentencePiece's unigram model (T5, XLM-R), pieces with log
probabilities.

SentencePiece keeps control tokens out of its search; here they are pieces like others, so that text
which spells one would become it. A cut after the first letter of such text keeps it apart.
"""

from __future__ import annotations

import base64
import re
from typing import Any

import numpy as np
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from weft.checkpoint.gguf.vocabularies.base import (
    BYTE,
    CONTROL,
    MARK,
    UNKNOWN,
    BosEosFrame,
    GGUFVocabulary,
    add_tokens,
    read_frame,
)
from weft.checkpoint.gguf.vocabularies.pieces import Step, TokenizerParts, cannot_write
from weft.core.errors import DataError

RUNS, ENDS = " {2,}", r"\A +| +\z"
"""Spaces that SentencePiece takes away: all but one of a run, and those at the ends of a text."""


def read(words: GGUFVocabulary) -> tuple[Backend, BosEosFrame]:
    """The tokenizer, and what it puts around a text."""
    scores = words.scores()
    if scores is None:
        raise DataError(
            "has no tokenizer.ggml.scores, which this kind of tokenizer needs. Use another file.",
            words.path,
        )
    model = models.Unigram(
        list(zip(words.tokens, scores, strict=True)),
        unk_id=words.ids.get("unknown", 0),
        byte_fallback=bool(words.of_type(BYTE)),
    )
    backend = Backend(model)
    has_prefix = words.flag("add_space_prefix", True)
    backend.normalizer = normalizers.Sequence(
        [
            *read_charsmap(words),
            *(tidying() if words.flag("remove_extra_whitespaces", False) else []),
            *([normalizers.Prepend(MARK)] if has_prefix else []),
            normalizers.Replace(" ", MARK),
        ]
    )
    cut = pre_tokenizers.Split(Regex(lookalikes(words)), "merged_with_previous")
    backend.pre_tokenizer = cut
    strip = [decoders.Strip(" ", 1, 0)] if has_prefix else []
    steps = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    backend.decoder = decoders.Sequence(steps)
    add_tokens(backend, words)
    return backend, read_frame(words, begin=False, end=True)


def tidying() -> list[normalizers.Normalizer]:
    return [normalizers.Replace(Regex(RUNS), " "), normalizers.Replace(Regex(ENDS), "")]


def read_charsmap(words: GGUFVocabulary) -> list[normalizers.Normalizer]:
    """SentencePiece's table of characters that are written in another way."""
    given = words.get("precompiled_charsmap")
    if given is None or len(given) == 0:
        return []
    try:
        table = np.asarray(given, dtype=np.int64).astype(np.uint8).tobytes()
        # the table says how long its first part is; the library does not check it
        if int.from_bytes(table[:4], "little") % 4 or int.from_bytes(table[:4], "little") >= len(
            table
        ):
            raise ValueError("its first number is not a length")
        return [normalizers.Precompiled(table)]
    except Exception as error:  # the library raises nothing narrower
        raise DataError(
            f"tokenizer.ggml.precompiled_charsmap cannot be used ({error}). Use another file.",
            words.path,
        ) from None


def lookalikes(words: GGUFVocabulary) -> str:
    """The first letter of text that spells a token which text must not become."""
    names = [words.tokens[index] for index in words.of_type(CONTROL, UNKNOWN)]
    cuts = [f"{re.escape(name[0])}(?={re.escape(name[1:])})" for name in names if len(name) > 1]
    return "|".join([*cuts, r"<(?=0x[0-9A-F]{2}>)"])


def matches(parts: TokenizerParts) -> bool:
    told = [*parts.normalizers, *parts.splits, *parts.decoders]
    return parts.model["type"] == "Unigram" and any(MARK in str(step) for step in told)


def write(parts: TokenizerParts, tokens: list[str]) -> dict[str, Any]:
    """Metadata of a unigram model; a UsageError for steps that GGUF cannot say."""
    vocab = parts.model["vocab"]
    lowest = min(score for _, score in vocab)
    scores = [float(score) for _, score in vocab]
    found = {
        "model": "t5",
        "pre": "default",
        "scores": scores + [lowest] * (len(tokens) - len(scores)),
        "unknown_token_id": parts.model["unk_id"],
        **spacing(parts),
    }
    table = [step["precompiled_charsmap"] for step in parts.normalizers if is_table(step)]
    if table:
        found["precompiled_charsmap"] = base64.b64decode(table[0])
    return found


def is_table(step: Step) -> bool:
    return step["type"] == "Precompiled"


def spacing(parts: TokenizerParts) -> dict[str, bool]:
    """What happens to spaces."""
    prefix, tidies, others = False, False, []
    for step in [*parts.normalizers, *parts.splits]:
        kind, pattern = step["type"], step.get("pattern", {})
        if kind == "Prepend" and step["prepend"] == MARK:
            prefix = True
        elif kind == "Metaspace" and step["replacement"] == MARK:
            prefix = step["prepend_scheme"] != "never"
        elif kind == "WhitespaceSplit" or pattern == {"Regex": RUNS}:
            tidies = True
        elif not (is_table(step) or kind == "Strip" or is_harmless(step)):
            others.append(kind)
    if others:
        raise cannot_write(f"it has steps besides the spaces ({', '.join(others)})")
    return {"add_space_prefix": prefix, "remove_extra_whitespaces": tidies}


def is_harmless(step: Step) -> bool:
    """Steps of ours that writing need not say: spaces to marks, ends, and the lookalikes."""
    pattern = step.get("pattern", {})
    if step["type"] == "Replace":
        return pattern in ({"String": " "}, {"Regex": ENDS})
    return step["type"] == "Split" and r"<(?=0x" in pattern.get("Regex", "")
