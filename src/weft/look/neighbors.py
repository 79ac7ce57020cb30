"""Token id -> the tokens with the most similar embeddings, by cosine.

Computed in units of a few milliseconds: the table of a large vocabulary has tens of millions of
numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.look.next_tokens import shown_token
from weft.text.tokenizer import Tokenizer

NUM_NEIGHBORS = 5
ROWS = 4096
"""Rows of the table in a unit of work."""


@dataclass(frozen=True)
class Neighbor:
    """A token near another one."""

    id: int
    text: str
    bytes: str
    cosine: float


def neighbor_units(
    words: Callable[[Tensor], Tensor], token_id: Tensor, vocab_size: int, tokenizer: Tokenizer
) -> Iterator[tuple[Neighbor, ...] | None]:
    """None after each unit of work, then the neighbors, best first. `words`: ids -> rows of the
    embedding table; `token_id`: on its device, without dimensions."""
    row_1D = words(token_id[None]).float()
    parts: list[Tensor] = []
    for start in range(0, vocab_size, ROWS):
        ids_N = torch.arange(start, min(start + ROWS, vocab_size), device=token_id.device)
        parts.append(F.cosine_similarity(words(ids_N).float(), row_1D))
        yield None
    cosines_V = torch.cat(parts)
    cosines_V[token_id] = -torch.inf
    top = cosines_V.topk(min(NUM_NEIGHBORS, vocab_size - 1))
    yield tuple(
        Neighbor(index, *shown_token(tokenizer, index), cosine)
        for index, cosine in zip(top.indices.tolist(), top.values.tolist(), strict=True)
    )
