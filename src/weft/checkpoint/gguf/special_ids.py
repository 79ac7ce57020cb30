"""Ids of BOS, EOS and PAD: tokenizer metadata -> the keys of a config.json.

A chat model may end a turn with another token than a text, and many files name only one of the two;
control tokens with a customary name end a text as well, as they do in llama.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.checkpoint.gguf.header import CONTROL
from weft.checkpoint.gguf.skipped_strings import SkippedStrings

END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
END_NAMES = frozenset(
    (
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|eom_id|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<end_of_turn>",
        "<EOT>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
    )
)
"""Control tokens that end a turn or a text wherever they occur."""


def read_special_ids(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """bos_token_id, eos_token_id (one id, or a list that starts with the file's) and pad_token_id,
    if the file has them."""
    ids: dict[str, Any] = {}
    begin, pad = read_id(metadata, "bos_token_id"), read_id(metadata, "padding_token_id")
    if begin is not None:
        ids["bos_token_id"] = begin
    ends = read_end_ids(metadata)
    if ends:
        ids["eos_token_id"] = ends[0] if len(ends) == 1 else ends
    if pad is not None:
        ids["pad_token_id"] = pad
    return ids


def read_end_ids(metadata: Mapping[str, Any]) -> list[int]:
    named = [read_id(metadata, key) for key in END_KEYS]
    tokens = tokens_of(metadata)
    if isinstance(tokens, SkippedStrings):
        customary = tokens.find(END_NAMES)
    else:
        customary = [i for i, name in enumerate(map(str, tokens)) if name in END_NAMES]
    types = metadata.get("tokenizer.ggml.token_type")
    types = types.tolist() if isinstance(types, np.ndarray) else []
    control = [i for i in customary if i < len(types) and types[i] == CONTROL]
    return list(dict.fromkeys(i for i in [*named, *control] if i is not None))


def read_id(metadata: Mapping[str, Any], key: str) -> int | None:
    """An id inside the vocabulary; files with another id mean none."""
    value = metadata.get(f"tokenizer.ggml.{key}")
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < len(tokens_of(metadata)) else None


def tokens_of(metadata: Mapping[str, Any]) -> list[Any] | SkippedStrings:
    tokens = metadata.get("tokenizer.ggml.tokens")
    return tokens if isinstance(tokens, (list, SkippedStrings)) else []
