"""Settings of an attention layer: kind of heads, pattern of allowed keys, kernel.

One flat class, so that `attention.kind=mla` alone changes a model's heads: fields that a kind does
not read are ignored with a warning.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable
from typing import Literal, NamedTuple

from pydantic import Field

from weft.core.config import Config
from weft.core.errors import Problem

log = logging.getLogger(__name__)


@functools.cache
def warn_once(text: str) -> None:
    """Log a warning the first time; settings are validated often."""
    log.warning(text)


class PatternConfig(Config):
    """Which keys a query may attend to, in addition to the causal mask (masks/)."""

    kind: Literal["full", "window", "dilated", "strided", "global", "blocks"] = "full"
    """full: all keys. window: the nearest ones. dilated, strided, global, blocks: sparse patterns
    made from the settings below."""
    window: int = Field(256, ge=1)
    """Keys in the window, the query's own included (window, dilated, global)."""
    step: int = Field(2, ge=1)
    """Distance between the keys of a dilated window."""
    stride: int = Field(128, ge=1)
    """Strided: the last `stride` keys, and every stride-th key before them (Child 2019)."""
    global_tokens: int = Field(1, ge=1)
    """Global: the first tokens, which attend to every token and are attended to by every token
    (Beltagy 2020)."""
    block_size: int = Field(64, ge=1)
    """blocks: tokens on each side of a block of the block-sparse pattern."""
    blocks: tuple[tuple[bool, ...], ...] | None = None
    """Blocks: rows of query blocks by key blocks; True: these queries attend to those keys."""
    full_every: int | None = Field(None, ge=1)
    """6: layers 6, 12, ... attend to all keys, whatever the pattern (Gemma 3)."""

    def cross_checks(self) -> Iterable[Problem]:
        if self.kind == "blocks" and not self.blocks:
            yield Problem(
                "kind is blocks, but blocks is empty: give rows of true and false.", ("blocks",)
            )
        if self.blocks and len({len(row) for row in self.blocks}) > 1:
            lengths = [len(row) for row in self.blocks]
            yield Problem(
                f"the rows of blocks have lengths {lengths}: make them equal.", ("blocks",)
            )

    def is_full(self, layer: int) -> bool:
        """Whether this layer (counted from 0) attends to all keys."""
        return self.kind == "full" or (
            self.full_every is not None and (layer + 1) % self.full_every == 0
        )

    def kv_window(self, layer: int) -> int | None:
        """How many of the last keys this layer can attend to; None: all of them."""
        if self.is_full(layer) or self.kind not in ("window", "dilated"):
            return None
        return self.window * (self.step if self.kind == "dilated" else 1)


class LatentConfig(Config):
    """Sizes of multi-head latent attention (DeepSeek-V2). None: derived from the head size."""

    kv_rank: int | None = Field(None, ge=1)
    """Width of the latent row that the KV cache stores (kv_lora_rank). None: 4 x head size, as in
    DeepSeek."""
    query_rank: int | None = Field(None, ge=1)
    """Width to which queries are compressed (q_lora_rank; DeepSeek-V3: 1536). None: no
    compression."""
    nope_size: int | None = Field(None, ge=1)
    """Head dimension of queries and keys without RoPE. None: the head size."""
    rope_size: int | None = Field(None, ge=2)
    """Head dimension of queries and keys with RoPE; this part of a key is shared by all heads.
    None: half the head size."""
    value_size: int | None = Field(None, ge=1)
    """Head dimension of the values, which may differ from that of queries and keys. None: the head
    size."""
    norm_eps: float | None = Field(None, gt=0)
    """eps of the norms over latent rows. None: as for the other norms. DeepSeek: always 1e-6."""
    form: Literal["auto", "expanded", "absorbed"] = "auto"
    """expanded: keys and values of every head are computed from the latent rows. absorbed: queries
    attend to the latent rows directly. auto: the form with fewer operations for the number of
    queries."""


class AttentionConfig(Config):
    """Settings of a model's attention layers."""

    kind: Literal["mha", "gqa", "mqa", "mla"] = "mha"
    """mha: keys and values for every head; gqa: for groups of heads; mqa: one for all; mla: one
    latent row."""
    num_heads: int = Field(8, ge=1)
    """Query heads H. The width must be a multiple of it, unless head_size is set."""
    num_kv_heads: int | None = Field(None, ge=1)
    """Groups of gqa. None: a quarter of the heads, at least two, where that divides them."""
    head_size: int | None = Field(None, ge=1)
    """Head dimension C: size of a query, key or value vector. None: width / num_heads."""
    bias: bool = False
    """Whether the query, key and value projections have a bias (Qwen2, GPT-2)."""
    out_bias: bool | None = None
    """Whether the output projection W_O has a bias. None: as `bias`."""
    qk_norm: bool = False
    """RMSNorm on each query and key head before their product (Qwen3, Gemma 3)."""
    softcap: float | None = Field(None, gt=0)
    """Softcap of the scores. 50.0: limited to -50..50 by 50 tanh(s / 50) (Gemma 2). None: no
    limit."""
    scale: float | None = Field(None, gt=0)
    """Factor on q . k. None: 1 / sqrt(head size). T5 uses 1.0."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout probability of the attention weights. Above 0, training uses the reference kernel."""
    kernel: Literal["auto", "reference", "flash", "sparse"] = "auto"
    """How attention is computed; results agree up to rounding. auto: sparse for long texts whose
    pattern allows few keys, otherwise flash. reference: as in the paper."""
    pattern: PatternConfig = PatternConfig()
    """Which keys a query attends to, besides the causal mask of a decoder."""
    latent: LatentConfig = LatentConfig()
    """Sizes of kind mla; other kinds ignore them."""

    def cross_checks(self) -> Iterable[Problem]:
        heads, groups = self.num_heads, self.num_kv_heads
        if self.kind == "gqa" and groups is not None and heads % groups:
            allowed = ", ".join(str(n) for n in range(1, min(heads, 256) + 1) if heads % n == 0)
            yield Problem(
                f"num_heads is {heads} but num_kv_heads is {groups}: heads must be a multiple of "
                f"kv heads. Use {allowed}.",
                ("num_heads", "num_kv_heads"),
            )
        if self.kind == "mla" and self.qk_norm:
            warn_once(
                "qk_norm=True has no effect: attention.kind=mla norms its latent rows instead"
            )
        if self.kind != "gqa" and groups not in (None, self.kv_heads):
            warn_once(f"num_kv_heads={groups} has no effect: attention.kind={self.kind} sets it")

    @property
    def kv_heads(self) -> int:
        """Number of key/value heads of the projections."""
        if self.kind == "mqa":
            return 1
        if self.kind != "gqa":
            return self.num_heads
        return self.num_kv_heads or default_groups(self.num_heads)

    @property
    def has_out_bias(self) -> bool:
        return self.bias if self.out_bias is None else self.out_bias

    def size_of_head(self, width: int) -> int:
        return self.head_size or width // self.num_heads

    def latent_sizes(self, width: int) -> LatentSizes:
        """The sizes of kind mla with their defaults filled in."""
        C, latent = self.size_of_head(width), self.latent
        return LatentSizes(
            kv_rank=latent.kv_rank or 4 * C,
            nope=latent.nope_size or C,
            rope=latent.rope_size or 2 * max(1, C // 4),
            value=latent.value_size or C,
        )

    def query_size(self, width: int) -> int:
        """Size of one query head."""
        sizes = self.latent_sizes(width)
        return sizes.nope + sizes.rope if self.kind == "mla" else self.size_of_head(width)

    def rotary_size(self, width: int) -> int:
        """Size of the part of a query head that rotary positions may rotate."""
        return self.latent_sizes(width).rope if self.kind == "mla" else self.size_of_head(width)

    def kv_rows(self, width: int) -> dict[str, tuple[int, ...]]:
        """Rows that a layer stores per token, by name."""
        if self.kind == "mla":
            sizes = self.latent_sizes(width)
            return {"latent": (sizes.kv_rank + sizes.rope,)}
        row = (self.kv_heads, self.size_of_head(width))
        return {"k": row, "v": row}

    def macs_per_pair(self, width: int) -> int:
        """Multiply-accumulates of one query and one key, over all heads: score and weighted
        value."""
        sizes = self.latent_sizes(width)
        if self.kind == "mla":
            return self.num_heads * (sizes.nope + sizes.rope + sizes.value)
        return 2 * self.num_heads * self.size_of_head(width)

    def macs_per_row(self, width: int) -> int:
        """Multiply-accumulates that project one token's keys and values; cross-attention needs
        them once per source token."""
        if self.kind != "mla":
            return 2 * self.kv_heads * self.size_of_head(width) * width
        A, J, O, U = self.latent_sizes(width)  # noqa: E741  the letter key's own name
        return (A + O) * width + self.num_heads * (J + U) * A


def default_groups(num_heads: int) -> int:
    """A quarter of the heads, but at least two; one if neither divides the heads."""
    candidates = [num_heads // 4 if num_heads % 4 == 0 else 0, 2 if num_heads % 2 == 0 else 0]
    return next((groups for groups in candidates if groups >= 2), 1)


class LatentSizes(NamedTuple):
    """A, J, O and U of the letter key (core/shapes.py)."""

    kv_rank: int
    nope: int
    rope: int
    value: int
