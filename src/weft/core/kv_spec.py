"""What an attention layer stores per token (`KVSpec`), and what one call of it reads (`KVView`).

Attention layers and caches are independent: a layer declares its rows, a cache stores whatever was
declared and returns the rows of the whole sequence. MHA declares K and V of every head, GQA of K
heads, MLA one latent row.

Keys are stored in slots: slot s of a row of the batch holds the key of that sequence's token s.
Queries are the newest tokens; the first of them is at slot `start`. Masks and relative positions
use slots only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

KVRows = dict[str, Tensor]
"""Rows of one layer by name, each [B, tokens, *row shape]."""


@dataclass(frozen=True)
class KVSpec:
    """The rows one layer stores per token: {"k": (K, C), "v": (K, U)} or {"latent": (A + O,)}."""

    rows: Mapping[str, tuple[int, ...]]
    is_cross: bool = False
    """True: written once per source (cross-attention); False: one row for each new token."""
    window: int | None = None
    """Only the last `window` rows are ever read again; None: all of them."""

    @property
    def numbers_per_token(self) -> int:
        return sum(math.prod(shape) for shape in self.rows.values())

    def bytes_per_token(self, dtype: torch.dtype = torch.float32) -> int:
        return self.numbers_per_token * dtype.itemsize


class KVView(Protocol):
    """Keys and values of every sequence in the batch, and the slot of the first query."""

    @property
    def k_BSKC(self) -> Tensor: ...

    @property
    def v_BSKU(self) -> Tensor: ...

    @property
    def start(self) -> int | Tensor:
        """Slot of the first query: one number for all rows of the batch, or a tensor [B]."""


@dataclass(frozen=True)
class DenseView:
    """A view over plain tensors: a pass without a cache, or with a contiguous one."""

    k_BSKC: Tensor
    v_BSKU: Tensor
    start: int | Tensor = 0


@dataclass(frozen=True)
class PageLayout:
    """Where the keys of a packed pass are: B sequences whose new tokens are concatenated.

    tokens N      a0 a1 a2 | b0 | c0 c1      offsets [0, 3, 4, 6]
    pages         a: 7 2   | b: 7 5 9 | c: 4 of R rows each; a and b share page 7

    All int32 tensors, made once per pass and shared by all layers of a KV cache group.
    """

    offsets: Tensor
    """[B + 1]: the queries of sequence b are offsets[b] to offsets[b + 1] of the packed tokens."""
    starts_B: Tensor
    """Slot of the first query of each sequence."""
    lengths_B: Tensor
    """Keys of each sequence, including the new ones; of its source for cross-attention."""
    table_BP: Tensor
    """Page that holds slots p R to p R + R - 1; 0, the null page, where nothing is read."""


@dataclass(frozen=True)
class PagedView:
    """Keys and values of one layer in the pages of a pool that all sequences share."""

    k_PRKC: Tensor
    v_PRKU: Tensor
    """May be a part of k_PRKC (latent rows are key and value at once): any strides."""
    layout: PageLayout


class KVCache(Protocol):
    """Stores declared rows. Layers are numbered in the order of the specs it was made from.

    A paged cache may also have `write_slots(layer, spec)`, the pages of a layer and the slots of
    this pass's new tokens in them, where a compiled stack writes their rows.
    """

    @property
    def start(self) -> int | Tensor:
        """Number of tokens of each sequence that were stored before this pass."""

    def extend(self, layer: int, rows: KVRows) -> KVRows:
        """Store the rows of this pass's new tokens; return the rows of all tokens so far."""

    def source(self, layer: int, compute: Callable[[], KVRows]) -> KVRows:
        """The source's rows for a cross-attention layer; `compute` is called only once."""

    def layout(self, layer: int) -> PageLayout | None:
        """Where the keys of each sequence are in the returned rows; None: row b is sequence b. With
        a layout, rows are those of all pages, [P, R, *row shape]."""
