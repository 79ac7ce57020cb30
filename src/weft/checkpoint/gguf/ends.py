"""Which tokens begin, end and fill a text: tokenizer metadata -> ids in the words of a config.json.

A chat model may end a turn with another token than a text, and many files name only one of the two;
tokens with a customary name end a text as well, as they do in llama.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

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
CONTROL = 3


def role_ids(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """bos_token_id, eos_token_id (one, or a list whose first is the file's own) and pad_token_id,
    as far as the file has them."""
    found: dict[str, Any] = {}
    begin, pad = one_id(metadata, "bos_token_id"), one_id(metadata, "padding_token_id")
    if begin is not None:
        found["bos_token_id"] = begin
    ends = end_ids(metadata)
    if ends:
        found["eos_token_id"] = ends[0] if len(ends) == 1 else ends
    if pad is not None:
        found["pad_token_id"] = pad
    return found


def end_ids(metadata: Mapping[str, Any]) -> list[int]:
    named = [one_id(metadata, key) for key in END_KEYS]
    types = metadata.get("tokenizer.ggml.token_type")
    customary = [i for i, t in enumerate(tokens_of(metadata)) if str(t) in END_NAMES]
    kinds = types.tolist() if isinstance(types, np.ndarray) else []
    control = [i for i in customary if i < len(kinds) and kinds[i] == CONTROL]
    return list(dict.fromkeys(i for i in [*named, *control] if i is not None))


def one_id(metadata: Mapping[str, Any], key: str) -> int | None:
    """An id inside the vocabulary; files that name others mean none."""
    value = metadata.get(f"tokenizer.ggml.{key}")
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < len(tokens_of(metadata)) else None


def tokens_of(metadata: Mapping[str, Any]) -> list[Any]:
    tokens = metadata.get("tokenizer.ggml.tokens")
    return tokens if isinstance(tokens, list) else []
