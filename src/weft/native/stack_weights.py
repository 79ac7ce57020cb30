"""Descriptions of a Transformer stack for the native library: weights and settings, no modules.

    StackWeights
      EmbeddingWeights      norm(words[id] * scale + added[position])
      LayerWeights          attention, cross-attention and feed-forward in their residual paths
        AttentionWeights, FeedForwardWeights, ResidualNorms
          LinearWeights, NormWeights
      HeadWeights           the LM head
    LayerKV                 pages of one layer's keys and values
    PositionRows            cos and sin, or rows that the embedding adds

models/compile.py reads them from modules; `fields()` are those of the library's structure
(csrc/weft_native.h), valid while the description lives.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from weft.native.kernels import ACTIVATION_IDS, norm_fields
from weft.native.library import address
from weft.native.packed import PackedMatrix

PLACEMENTS = {"before": 0, "after": 1, "both": 2}
Fields = tuple[object, ...]
"""Values of a structure of the library, in order; () for zeros."""


class Described(Protocol):
    def fields(self) -> Fields: ...


def fields_of(part: Described | None) -> Fields:
    return () if part is None else part.fields()


@dataclass(frozen=True, eq=False)
class NormWeights:
    """layernorm or rmsnorm; contiguous float32 tensors."""

    weight_D: Tensor
    bias_D: Tensor | None
    kind: Literal["layernorm", "rmsnorm"]
    eps: float
    unit_offset: bool

    def fields(self) -> Fields:
        """WeftNorm."""
        settings = {"kind": self.kind, "eps": self.eps, "unit_offset": self.unit_offset}
        return norm_fields(self.weight_D, self.bias_D, **settings)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class LinearWeights:
    """x W^T + bias."""

    matrix: PackedMatrix
    bias_O: Tensor | None

    def fields(self) -> Fields:
        """WeftLinear."""
        return self.matrix.struct, address(self.bias_O)


@dataclass(frozen=True, eq=False)
class ResidualNorms:
    """The norms of a residual path: before or after its sub-layer, and Gemma's second one."""

    norm: NormWeights
    norm_out: NormWeights | None

    def fields(self) -> Fields:
        """WeftResidualNorms."""
        return self.norm.fields(), fields_of(self.norm_out)


@dataclass(frozen=True, eq=False)
class AttentionWeights:
    """Grouped-query attention, or cross-attention over an encoded source."""

    qkv: LinearWeights
    """Rows in the order Q, K, V."""
    out: LinearWeights
    qk_norms: tuple[NormWeights, NormWeights] | None
    num_heads: int
    num_kv_heads: int
    head_size: int
    scale: float
    softcap: float | None
    kv_index: int
    """Index of the layer among the model's KVSpecs."""
    is_causal: bool
    window: int | None
    rotary: int | None
    """Which table of `PositionRows.rotary` rotates queries and keys; None: they are not rotated."""

    def fields(self) -> Fields:
        """WeftAttention."""
        norms = [fields_of(norm) for norm in self.qk_norms or (None, None)]
        sizes = (self.num_heads, self.num_kv_heads, self.head_size, self.head_size)
        has_norms = self.qk_norms is not None
        return self.qkv.fields(), self.out.fields(), *norms, has_norms, *sizes

    @property
    def qkv_size(self) -> int:
        """Numbers of a token's queries, keys and values."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_size

    @property
    def out_size(self) -> int:
        """Numbers of a token's concatenated heads."""
        return self.num_heads * self.head_size


@dataclass(frozen=True, eq=False)
class FeedForwardWeights:
    """MLP, or gated MLP with the rows of gate and up in one matrix."""

    up: LinearWeights
    down: LinearWeights
    is_gated: bool
    activation: str


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """One layer: attention, cross-attention and feed-forward, each in its residual path."""

    width: int
    placement: Literal["before", "after", "both"]
    attention: AttentionWeights
    attention_norms: ResidualNorms
    cross: AttentionWeights | None
    cross_norms: ResidualNorms | None
    feedforward: FeedForwardWeights
    feedforward_norms: ResidualNorms

    def fields(self) -> Fields:
        """WeftLayer."""
        feedforward = self.feedforward
        norms = (self.attention_norms, self.cross_norms, self.feedforward_norms)
        return (
            *(self.width, PLACEMENTS[self.placement], self.cross is not None),
            *(fields_of(residual) for residual in norms),
            *(self.attention.fields(), fields_of(self.cross)),
            *(feedforward.up.fields(), feedforward.down.fields(), feedforward.down.matrix.inputs),
            *(feedforward.is_gated, ACTIVATION_IDS[feedforward.activation]),
        )

    @property
    def inner_size(self) -> int:
        """Numbers of a token inside the layer, as struct Buffers of layer.cpp arranges them."""
        cross, feedforward = self.cross, self.feedforward
        qkv = max(self.attention.qkv_size, 0 if cross is None else cross.out_size)
        heads = max(self.attention.out_size, 0 if cross is None else cross.out_size)
        return qkv + heads + feedforward.up.matrix.outputs + feedforward.down.matrix.inputs


@dataclass(frozen=True, eq=False)
class EmbeddingWeights:
    """norm(words[id] * scale + added[position])."""

    words: PackedMatrix
    scale: float
    norm: NormWeights | None
    adds_positions: bool


@dataclass(frozen=True, eq=False)
class HeadWeights:
    """The LM head without softcap: x * scale times the word table."""

    linear: LinearWeights
    scale: float


@dataclass(frozen=True, eq=False)
class StackWeights:
    """A whole stack. `top_k` and `greedy` need embedding and head."""

    layers: Sequence[LayerWeights]
    final_norm: NormWeights | None
    embedding: EmbeddingWeights | None = None
    head: HeadWeights | None = None


@dataclass(frozen=True, eq=False)
class LayerKV:
    """The pages of one layer's keys and values."""

    k_PRKC: Tensor
    v_PRKC: Tensor
    group: int = 0
    """Number of its page layout and slots among those of a call."""


@dataclass(frozen=True, eq=False)
class RotaryTable:
    """cos and signed sin by position, [M, 2, 1, O]."""

    cos_sin: Tensor
    size: int
    """Numbers of a head that are rotated."""
    is_interleaved: bool

    def fields(self, positions: int) -> Fields:
        """WeftRotary. `positions`: an address; 0 where the library fills them in."""
        table, first = self.cos_sin, self.cos_sin.data_ptr()
        addresses = (first, first + 4 * table.stride(1), positions)
        return *addresses, table.stride(0), self.size, self.is_interleaved


@dataclass(frozen=True, eq=False)
class PositionRows:
    """Position tables of a stack; longer sequences need longer tables."""

    rotary: Sequence[RotaryTable | None] = ()
    added_MD: Tensor | None = None
    """Rows that the embedding adds."""
    num_positions: int = sys.maxsize
    """The tables have rows for positions below this."""
    can_embed: bool = True
    """False: the embedding adds rows of which there is no table."""
