"""`ForwardBatch`: all inputs of one forward pass through a model.

Sequences are padded on the right: row b holds `lengths_B[b]` real tokens, then padding. With a
cache, the new tokens come after the `cache.start` tokens that it already holds. The engine packs
instead: one row with the new tokens of all sequences, and a cache with their page tables.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from weft.core.errors import UsageError
from weft.core.kv_spec import KVCache
from weft.core.shapes import check_shapes


@dataclass(frozen=True)
class ForwardBatch:
    """Token ids and their metadata. Only `ids_BT` is required."""

    ids_BT: Tensor
    lengths_B: Tensor | None = None
    """Real new tokens in each row; None: all T."""
    documents_BT: Tensor | None = None
    """Document index of each token in a packed sample; attention stays within a document."""
    prefix_B: Tensor | None = None
    """Number of leading tokens with bidirectional attention (prefix language model)."""
    segments_BT: Tensor | None = None
    """Segment of each token (BERT's token types)."""
    position_ids_BT: Tensor | None = None
    """Position of each token, if they do not continue from `start`: a packed row."""
    cache: KVCache | None = None
    memory_BSD: Tensor | None = None
    """Encoder output that cross-attention reads."""
    memory_lengths_B: Tensor | None = None
    """Real tokens in each row of the memory; None: all of them."""

    def __post_init__(self) -> None:
        if self.ids_BT.ndim != 2 or self.ids_BT.shape[1] == 0:
            raise UsageError(
                f"ids have shape {tuple(self.ids_BT.shape)}: a batch is [rows, tokens] with at "
                "least one token a row. Use ids[None] for a single sequence."
            )
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        check_shapes(**{name: value for name, value in named.items() if isinstance(value, Tensor)})

    @property
    def start(self) -> int | Tensor:
        """Tokens of each sequence before this pass."""
        return 0 if self.cache is None else self.cache.start

    @property
    def positions_BT(self) -> Tensor:
        """Position of each new token in its document, from 0; [1, T] where all rows agree."""
        T, device = self.ids_BT.shape[1], self.ids_BT.device
        index_1T = torch.arange(T, device=device)[None]
        if self.position_ids_BT is not None:
            return self.position_ids_BT
        if self.documents_BT is not None:
            return index_1T - document_starts(self.documents_BT)
        start = self.start
        return index_1T + (start[:, None] if isinstance(start, Tensor) else start)


def document_starts(documents_BT: Tensor) -> Tensor:
    """For each token the index of the first token of its document."""
    index_T = torch.arange(documents_BT.shape[1], device=documents_BT.device)
    is_first_BT = torch.ones_like(documents_BT, dtype=torch.bool)
    is_first_BT[:, 1:] = documents_BT[:, 1:] != documents_BT[:, :-1]
    return torch.where(is_first_BT, index_T, 0).cummax(dim=1).values
