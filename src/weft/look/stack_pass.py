"""One pass of a stack in units of work: token blocks through its layers, with all K and V kept.

A unit is one part of a layer (attention, cross-attention, feed-forward) for a block of rows. The
blocks of a causal stack follow each other through a layer, as chunked prefill does; a bidirectional
stack first computes the keys and values of all blocks. So no unit needs more than block x T scores,
and any row can be run again later against the kept keys (`run_rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from weft.core.forward_batch import ForwardBatch
from weft.core.kv_spec import KVRows, PageLayout
from weft.look.sublayer_stages import (
    attention_of,
    explicit_scores,
    run_attention,
    run_feedforward,
)
from weft.look.taps import Values
from weft.look.trace_data import Array
from weft.models.stack import Stack
from weft.nn.attention.base import AttentionContext
from weft.nn.attention.layer import Attention
from weft.nn.block import Block

MAX_ROWS = 128
"""Rows of a unit, so that its scores are at most this many times the keys."""
FLOPS_PER_MS = 2e7
"""Assumed speed, for the number of rows in a unit; two cores without vector units."""


class TraceKVCache:
    """The rows of all layers of one pass. Differs from a decoding cache: rows that are stored
    already are not written again, so that a token can be run once more."""

    def __init__(self, num_tokens: int, is_causal: bool) -> None:
        self.num_tokens, self.is_causal = num_tokens, is_causal
        self.start = 0
        self.stored: dict[int, KVRows] = {}
        self.sources: dict[int, KVRows] = {}
        self.filled: dict[int, int] = {}

    def extend(self, layer: int, rows: KVRows) -> KVRows:
        size = next(iter(rows.values())).shape[1]
        self.write(layer, rows, self.start)
        end = self.start + size if self.is_causal else self.num_tokens
        return {name: x[:, :end] for name, x in self.stored[layer].items()}

    def write(self, layer: int, rows: KVRows, start: int) -> None:
        """Store new rows; those that are stored already stay."""
        end = start + next(iter(rows.values())).shape[1]
        if self.filled.get(layer, 0) >= end:
            return
        if layer not in self.stored:
            self.stored[layer] = {
                name: x.new_zeros(1, self.num_tokens, *x.shape[2:]) for name, x in rows.items()
            }
        for name, x in rows.items():
            self.stored[layer][name][:, start:end] = x
        self.filled[layer] = end

    def source(self, layer: int, compute: Callable[[], KVRows]) -> KVRows:
        if layer not in self.sources:
            self.sources[layer] = compute()
        return self.sources[layer]

    def layout(self, layer: int) -> PageLayout | None:
        return None

    @property
    def nbytes(self) -> int:
        kept = [*self.stored.values(), *self.sources.values()]
        return sum(x.numel() * x.element_size() for rows in kept for x in rows.values())


@dataclass
class StackPass:
    """A stack, its tokens, and what is kept of their pass."""

    stack: Stack
    name: str
    batch: ForwardBatch
    unit_ms: float
    ablated: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Heads by the prefix of their stages, such as decoder.2.cross."""

    def __post_init__(self) -> None:
        self.local, self.full = self.stack.contexts(self.batch)
        self.num_tokens = self.batch.ids_BT.shape[1]
        self.cache = TraceKVCache(self.num_tokens, self.stack.is_causal)
        self.inputs: list[Tensor] = []
        """x_1TD before each layer, or before the first one only (`keeps_inputs` False): what rows
        are run again from."""
        self.keeps_inputs = False
        self.rollout_TT: Array | None = None
        """Attention rollout of the layers so far, if all their weights are recorded."""

    def context(self, block: Block, rows: slice) -> AttentionContext:
        """The context of a block for some rows."""
        ctx = self.full if block.attention.is_full else self.local
        self.cache.start = rows.start
        positions_BT = ctx.positions_BT[:, rows]
        return replace(ctx, positions_BT=positions_BT, start=rows.start, cache=self.cache)

    def explicit(
        self, layer: int, part: str, x_1TD: Tensor, slots: slice | Sequence[int]
    ) -> Values:
        """q, scores, mask and weights of some slots, from the inputs of the attention layer
        there."""
        block = self.stack.layers[layer]
        attention, _ = attention_of(block, part)
        slots_T = torch.arange(self.num_tokens, device=x_1TD.device)
        slots_T = slots_T[slots] if isinstance(slots, slice) else slots_T[list(slots)]
        ctx = self.context(block, slice(0, 0))
        positions_BT = self.full.positions_BT[:, slots_T]
        ctx = replace(ctx, positions_BT=positions_BT, start=int(slots_T[0]))
        return explicit_scores(attention, x_1TD, ctx, self.rows_of_keys(attention), slots_T)

    def rows_of_keys(self, layer: Attention) -> KVRows:
        """All rows that a layer has stored."""
        stored = self.cache.sources if layer.slot.is_cross else self.cache.stored
        return stored[layer.slot.kv_index]

    def rows_per_unit(self, num_weights: int) -> int:
        """Rows of a product with this many weights."""
        return max(1, int(self.unit_ms * FLOPS_PER_MS / (2 * max(1, num_weights))))

    @property
    def num_weights_per_row(self) -> int:
        """Weights that one row of a layer is multiplied by."""
        return num_weights(self.stack.layers[0])

    def blocks_of_rows(self, num_weights: int) -> list[slice]:
        """Rows of the units of a part with this many weights."""
        size, T = min(self.rows_per_unit(num_weights), MAX_ROWS), self.num_tokens
        return [slice(i, min(i + size, T)) for i in range(0, T, size)]

    def parts(self, block: Block) -> list[str]:
        return (
            ["attention", "feedforward"]
            if block.cross is None
            else [
                "attention",
                "cross",
                "feedforward",
            ]
        )

    def run_part(
        self, layer: int, part: str, x_1TD: Tensor, rows: slice, has_weights: bool
    ) -> tuple[Tensor, Values]:
        """(output, stages) of a part of a layer for some rows, of which x_1TD are the inputs."""
        block = self.stack.layers[layer]
        ctx = self.context(block, rows)
        if part == "feedforward":
            return run_feedforward(block, x_1TD)
        heads = self.ablated.get(f"{self.name}.{layer}.{part}", ())
        return run_attention(block, part, x_1TD, ctx, heads, has_weights)

    def prefill_keys(self, layer: int, x_1TD: Tensor, blocks: Sequence[slice]) -> Iterator[None]:
        """Store the keys and values of a bidirectional layer before its first query."""
        block = self.stack.layers[layer]
        attention, path = attention_of(block, "attention")
        for rows in blocks if len(blocks) > 1 and not self.stack.is_causal else []:
            ctx = self.context(block, rows)
            x = x_1TD[:, rows] if path.placement == "after" else path.norm(x_1TD[:, rows])
            kv = attention.project_kv(x, ctx)
            self.cache.write(attention.slot.kv_index, kv, rows.start)
            yield

    def run_rows(
        self, layer: int, part: str, rows: slice, has_weights: bool = True
    ) -> Iterator[tuple[Tensor, Values] | None]:
        """Run rows of the finished pass again, up to a part of a layer; None after each layer, then
        (output, stages) of that part."""
        first = layer if self.keeps_inputs else 0
        x_1TD = self.inputs[first][:, rows]
        for number in range(first, layer + 1):
            for one in self.parts(self.stack.layers[number]):
                is_last = (number, one) == (layer, part)
                x_1TD, values = self.run_part(number, one, x_1TD, rows, is_last and has_weights)
                if is_last:
                    yield x_1TD, values
                    return
            yield None

    def run_rows_of_all_layers(self, part: str, rows: slice) -> Iterator[Values]:
        """Run rows of the finished pass again through all layers: the stages of a part of each."""
        x_1TD = self.inputs[0][:, rows]
        for layer, block in enumerate(self.stack.layers):
            if self.keeps_inputs:
                x_1TD = self.inputs[layer][:, rows]
            for one in self.parts(block):
                x_1TD, values = self.run_part(layer, one, x_1TD, rows, one == part)
                if one == part:
                    yield values
                    if self.keeps_inputs:
                        break

    @property
    def nbytes(self) -> int:
        return self.cache.nbytes + sum(x.numel() * x.element_size() for x in self.inputs)


def num_weights(module: torch.nn.Module | None) -> int:
    """Weights that one row of a module is multiplied by; experts count all."""
    return 0 if module is None else sum(p.numel() for p in module.parameters())
