"""`TokenizerParts`: the steps of a `tokenizers` tokenizer, for writing GGUF metadata.

Its tokenizer.json enters; the steps that its normaliser, its pre-tokeniser and its decoder are made
of leave, in order, with sequences within sequences written out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from weft.checkpoint.gguf.vocabularies.base import CONTROL, NORMAL, UNUSED, USER_DEFINED
from weft.core.errors import UsageError
from weft.text.tokenizer import Tokenizer

Step = dict[str, Any]
INNER = ("normalizers", "pretokenizers", "decoders")
"""Where a sequence keeps its steps."""


@dataclass(frozen=True)
class TokenizerParts:
    """What a tokenizer.json says."""

    model: Step
    normalizers: list[Step]
    splits: list[Step]
    decoders: list[Step]
    added: list[Step]
    """Tokens that are found in text before anything else."""

    @property
    def kinds(self) -> tuple[list[str], list[str]]:
        """Names of the steps before the model."""
        return [s["type"] for s in self.normalizers], [s["type"] for s in self.splits]


def parse_tokenizer_json(tokenizer: Tokenizer) -> TokenizerParts:
    if tokenizer.target is not tokenizer:
        raise cannot_write("its two sides have vocabularies of their own")
    told = json.loads(tokenizer.backend.to_str())
    for token in told["added_tokens"]:
        if token["lstrip"] or token["rstrip"] or token["single_word"]:
            raise cannot_write(f"its token {token['content']!r} takes in the spaces around it")
    return TokenizerParts(
        told["model"],
        flat(told["normalizer"]),
        flat(told["pre_tokenizer"]),
        flat(told["decoder"]),
        told["added_tokens"],
    )


def flat(step: Step | None) -> list[Step]:
    """The steps of a sequence, or the one that there is."""
    if step is None:
        return []
    for key in INNER:
        if key in step:
            return [inner for one in step[key] for inner in flat(one)]
    return [step]


def cannot_write(reason: str) -> UsageError:
    return UsageError(
        f"this tokenizer cannot be written into a GGUF file: {reason}. Convert to hf instead."
    )


def list_tokens(parts: TokenizerParts, size: int) -> tuple[list[str], list[int]]:
    """Tokens in the order of their ids, and their types, `size` of each. Ids without a token get
    a name that no text becomes."""
    vocab = parts.model["vocab"]
    names = {i: t for t, i in vocab.items()} if isinstance(vocab, dict) else {}
    if isinstance(vocab, list):
        names = {index: piece for index, (piece, _) in enumerate(vocab)}
    types = dict.fromkeys(names, NORMAL)
    for token in parts.added:
        names[token["id"]] = token["content"]
        types[token["id"]] = CONTROL if token["special"] else USER_DEFINED
    if len(names) and max(names) >= size:
        raise UsageError(
            f"the tokenizer has an id {max(names)} but the model has {size} words. Use the "
            "tokenizer that belongs to the model."
        )
    tokens = [names.get(index, f"[PAD{index}]") for index in range(size)]
    return tokens, [types.get(index, UNUSED) for index in range(size)]
