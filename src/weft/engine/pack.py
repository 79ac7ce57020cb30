"""Chunks of many sequences -> one packed pass: ids_1N, positions and where every row goes.

    chunk a   slots 5 6 7      ids  a5 a6 a7 | b0 b1 | c9      one row, no padding
    chunk b   slots 0 1        offsets  0        3       5   6
    chunk c   slot  9

Everything is made with a handful of numpy calls, whatever the number of sequences: at one token a
sequence the arithmetic of a small model takes less time than a Python loop over tensors would.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.core.kv_spec import PageLayout

Tables = Sequence["array[int]"]


@dataclass(frozen=True)
class Packed:
    """The new tokens of a pass, one behind the other."""

    ids_1N: Tensor
    placed_1N: Tensor
    offsets: Any
    """[B + 1], numpy: where each sequence's tokens begin."""
    starts: Any
    ends: Any

    @classmethod
    def of(cls, tokens: Sequence[Sequence[int]], starts: Sequence[int]) -> Packed:
        counts = np.fromiter(map(len, tokens), dtype=np.int32, count=len(tokens))
        offsets = np.zeros(len(tokens) + 1, dtype=np.int32)
        np.cumsum(counts, out=offsets[1:])
        begins = np.asarray(starts, dtype=np.int32)
        placed = np.arange(offsets[-1], dtype=np.int64) + np.repeat(begins - offsets[:-1], counts)
        ids = np.fromiter((token for part in tokens for token in part), np.int64, int(offsets[-1]))
        ids_1N, placed_1N = torch.from_numpy(ids)[None], torch.from_numpy(placed)[None]
        return cls(ids_1N, placed_1N, offsets, begins, begins + counts)

    @classmethod
    def of_ones(cls, ids_B: Any, starts_B: Any) -> Packed:
        """One token of each sequence; both are arrays."""
        offsets = np.arange(len(ids_B) + 1, dtype=np.int32)
        ids_1N = torch.from_numpy(ids_B.astype(np.int64))[None]
        placed_1N = torch.from_numpy(starts_B.astype(np.int64))[None]
        return cls(ids_1N, placed_1N, offsets, starts_B, starts_B + 1)

    def layout(self, table_BP: Any, device: torch.device) -> PageLayout:
        """Where the keys of each sequence lie, for layers of self-attention."""
        return page_layout(self.offsets, self.starts, self.ends, table_BP, device)

    def source_layout(self, table_BP: Any, lengths_B: Any, device: torch.device) -> PageLayout:
        """The same for cross-attention, whose keys are those of a source."""
        return page_layout(self.offsets, np.zeros_like(self.starts), lengths_B, table_BP, device)

    def slots(self, table_BP: Any, page_size: int, device: torch.device) -> Tensor:
        """slots_N: the row of the pool, page * R + row of the page, in which each token goes."""
        placed = self.placed_1N[0].numpy()
        sequence_N = np.repeat(np.arange(len(table_BP)), np.diff(self.offsets))
        page_N = table_BP[sequence_N, placed // page_size].astype(np.int64)
        assert page_N.all(), "a new token has no page"
        return torch.from_numpy(page_N * page_size + placed % page_size).to(device)


def page_layout(
    offsets: Any, starts: Any, ends: Any, table_BP: Any, device: torch.device
) -> PageLayout:
    parts = (offsets, starts, ends, table_BP)
    return PageLayout(*(torch.from_numpy(part).to(device) for part in parts))


def written_out(tables: Tables) -> Any:
    """Tables of unequal lengths as one matrix table_BP, with 0 where a table has ended."""
    lengths_B = np.fromiter(map(len, tables), dtype=np.int64, count=len(tables))
    table_BP = np.zeros((len(tables), lengths_B.max(initial=1)), dtype=np.int32)
    is_there_BP = np.arange(table_BP.shape[1]) < lengths_B[:, None]
    table_BP[is_there_BP] = np.frombuffer(b"".join(tables), dtype=np.int32)
    return table_BP


def consecutive(lengths: Sequence[int], page_size: int) -> list[array[int]]:
    """Tables for rows that nobody keeps: each sequence gets the next pages, from 1 on."""
    tables, first = [], 1
    for length in lengths:
        after = first - (-length // page_size)
        tables.append(array("i", range(first, after)))
        first = after
    return tables
