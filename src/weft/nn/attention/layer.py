"""What every kind of heads shares: x_BTD -> y_BTD, by way of rows that a cache may keep.

    rows = make_rows(x or memory)       what is stored per token; KVSpec declares it
    rows = cache.extend(rows)           the rows of all tokens so far (self-attention)
           cache.source(rows)           the rows of the source, made once (cross-attention)
           cache.layout()               where they lie, when the cache keeps pages
    y    = read(x, rows)                queries meet keys; weights meet values; heads are joined

Self- and cross-attention are one class: they differ in whose rows are read, in positions and in
the mask. Differs from the textbook: a layer never builds a mask or a position; both arrive in
`Pass`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weft.core.kv_spec import DenseView, KVCache, KVRows, KVSpec, PagedView
from weft.core.shapes import check_shapes
from weft.nn.attention.base import Mask
from weft.nn.attention.kernels import attend
from weft.nn.attention.kernels.reference import attention_weights
from weft.nn.attention.packed import attend_pages
from weft.nn.attention.settings import AttentionConfig
from weft.nn.positions.base import Bias, Position


@dataclass(frozen=True)
class Pass:
    """What all layers of a stack share in one pass."""

    position: Position
    """Of this layer: those that do not see all keys may have another one than the rest."""
    positions_BT: Tensor
    """Position of each new token in its document; [1, T] where all rows agree."""
    start: int | Tensor
    """Slot of the first new token."""
    lengths: int | Tensor
    """Tokens of each sequence so far, the new ones included."""
    mask: Mask | None = None
    """Who sees whom in layers with the model's pattern."""
    full_mask: Mask | None = None
    """The same for layers that see all keys."""
    cache: KVCache | None = None
    memory_BSD: Tensor | None = None
    memory_mask: Mask | None = None


@dataclass(frozen=True)
class Place:
    """Where in a model an attention layer stands."""

    layer: int = 0
    slot: int = 0
    """Its number among the model's KVSpecs."""
    is_cross: bool = False


class Attention(nn.Module):
    """softmax(Q K^T * scale + bias, masked) V for H heads, joined by W_O. Base of the head
    kinds."""

    spec: KVSpec
    out: nn.Linear
    numbers_per_pair: int
    """Multiply-adds when one query meets one key and takes its value, over all heads."""
    numbers_per_row: int
    """Multiply-adds that make one token's rows; cross-attention pays them once per source token."""

    def __init__(self, config: AttentionConfig, place: Place, scale: float) -> None:
        super().__init__()
        self.config, self.place = config, place
        self.scale = config.scale or scale
        self.is_full = place.is_cross or config.pattern.is_full(place.layer)
        # a hook on `weights` is how others look inside: with one in place the reference kernel
        # shows its weights
        self.weights = nn.Identity()

    def make_rows(self, x_BSD: Tensor, given: Pass) -> KVRows:
        """What the cache keeps of each token of x."""
        raise NotImplementedError

    def read(self, x_BTD: Tensor, rows: KVRows, given: Pass) -> Tensor:
        """Joined heads for the queries of x over all rows: [B, T, H * U]."""
        raise NotImplementedError

    def forward(self, x_BTD: Tensor, given: Pass) -> Tensor:
        check_shapes(x_BTD=x_BTD)
        return self.out(self.read(x_BTD, self.rows_for(x_BTD, given), given))

    def rows_for(self, x_BTD: Tensor, given: Pass) -> KVRows:
        """The rows of all tokens that these queries may look at."""
        cache, slot = given.cache, self.place.slot
        if not self.place.is_cross:
            rows = self.make_rows(x_BTD, given)
            return rows if cache is None else cache.extend(slot, rows)
        return (
            self.source_rows(given)
            if cache is None
            else cache.source(slot, lambda: self.source_rows(given))
        )

    def source_rows(self, given: Pass) -> KVRows:
        memory_BSD = given.memory_BSD
        assert memory_BSD is not None, "cross-attention was called without an encoder's output"
        return self.make_rows(memory_BSD, given)

    def rotate_queries(self, q_BTHO: Tensor, given: Pass) -> Tensor:
        """New queries, rotated to their positions; cross-attention has no positions."""
        if self.place.is_cross:
            return q_BTHO
        return given.position.rotate_queries(q_BTHO, given.positions_BT, given.lengths)

    def rotate_keys(self, k_BTKO: Tensor, given: Pass) -> Tensor:
        """New keys, rotated to their positions; cross-attention has no positions."""
        if self.place.is_cross:
            return k_BTKO
        return given.position.rotate_keys(k_BTKO, given.positions_BT, given.lengths)

    def turn_stored(self, k_BSKO: Tensor, given: Pass) -> Tensor:
        """Keys as they were stored, rotated now: only for angles that depend on the length."""
        if self.place.is_cross or not given.position.turns_late:
            return k_BSKO
        slots_1S = torch.arange(k_BSKO.shape[1], device=k_BSKO.device)[None]
        positions = given.positions_BT if given.cache is None else slots_1S
        return given.position.rotate_keys(k_BSKO, positions, given.lengths)

    def bias(self, q_BTHC: Tensor, given: Pass) -> Bias | None:
        return None if self.place.is_cross else given.position.bias(self.place.layer, q_BTHC)

    def core(
        self, q_BTHC: Tensor, k_BSKC: Tensor, v_BSKU: Tensor, given: Pass, bias: Bias | None
    ) -> Tensor:
        """The scaled dot product itself: out_BTHU, by the kernel that the settings name."""
        softcap, mask = self.config.softcap, self.mask(given)
        layout = None if given.cache is None else given.cache.layout(self.place.slot)
        if layout is not None:
            paged = PagedView(k_BSKC, v_BSKU, layout)
            return attend_pages(q_BTHC, paged, mask, bias, self.scale, softcap=softcap)[0]
        check_shapes(q_BTHC=q_BTHC, k_BSKC=k_BSKC, v_BSKU=v_BSKU)
        view = DenseView(k_BSKC, v_BSKU, 0 if self.place.is_cross else given.start)
        if self.weights._forward_hooks:
            weights_BHTS, _ = attention_weights(
                q_BTHC, view, mask, bias, self.scale, softcap=softcap
            )
            self.weights(weights_BHTS)
        dropout = self.config.dropout if self.training else 0.0
        kernel = self.config.kernel
        return attend(
            kernel, q_BTHC, view, mask, bias, self.scale, softcap=softcap, dropout=dropout
        )[0]

    def mask(self, given: Pass) -> Mask | None:
        if self.place.is_cross:
            return given.memory_mask
        return given.full_mask if self.is_full else given.mask
