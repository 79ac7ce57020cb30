"""`LayeredForward`: a forward pass that several engine steps compute, layer by layer.

    x_1ND = layered.run(plan.layered)       a part of the work on the chunks; after the last layer,
                                            x_1ND is what `ModelRunner.forward` returns for them

A part is run in at most three calls: the rest of a layer, whole layers, the beginning of a layer.
The keys of earlier tokens are in their pages by then, so the bits are those of a single call. The
hidden states of one pass are kept between two steps; a part that starts at position 0 replaces
them, so a pass that is abandoned needs no cleanup. Chunks whose requests have ended are skipped,
which does not change the other rows. scheduling/layered_prefill.py explains why layers are divided.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from weft.cache.kv_groups import KVCacheLayout
from weft.engine.input_batch import InputBatch
from weft.engine.scheduling.plan import Chunk, LayerRange


class RangeRunner(Protocol):
    """What runs some layers of a packed batch."""

    kv_layout: KVCacheLayout

    def forward_range(
        self, batch: InputBatch, begin: int, end: int, x_1ND: Tensor | None
    ) -> Tensor:
        """x_1ND after layers begin to end, and after the final norm if the last one is among them;
        None as the input of layer 0."""


class LayerSpan(NamedTuple):
    """Some layers for some of the packed tokens."""

    layers: range
    tokens: range


def spans_of(layers: LayerRange) -> Iterator[LayerSpan]:
    """The calls that compute a range, in order."""
    num_tokens, position = layers.num_tokens, layers.begin
    while position < layers.end:
        layer, row = divmod(position, num_tokens)
        num_layers = 1 if row else max(1, (layers.end - position) // num_tokens)
        end = min(layers.end, (layer + num_layers) * num_tokens)
        num_rows = end - position if num_layers == 1 else num_tokens
        yield LayerSpan(range(layer, layer + num_layers), range(row, row + num_rows))
        position = end


def select_tokens(chunks: list[Chunk], tokens: range) -> list[Chunk]:
    """The chunks that hold these of their packed tokens, without the others."""
    selected, offset = [], 0
    for chunk in chunks:
        size = len(chunk.tokens)
        begin, end = max(tokens.start - offset, 0), min(tokens.stop - offset, size)
        if begin < end:
            part = chunk.tokens[begin:end]
            selected.append(replace(chunk, start=chunk.start + begin, tokens=part))
        offset += size
    return selected


@dataclass(frozen=True)
class HiddenStates:
    """What the next layer of each token reads."""

    chunks: list[Chunk]
    x_1ND: Tensor
    """Their tokens, chunk after chunk."""
    num_computed: list[int]
    """For each chunk: `LayerRange.num_computed`."""

    def select(self, layers: LayerRange) -> Tensor:
        """The rows of the chunks of a range, which continues where these end."""
        sizes = [len(chunk.tokens) for chunk in self.chunks]
        rows = dict(zip(map(id, self.chunks), self.x_1ND.split(sizes, dim=1), strict=True))
        computed = dict(zip(map(id, self.chunks), self.num_computed, strict=True))
        names = [id(chunk) for chunk in layers.chunks]
        assert [computed[name] for name in names] == layers.num_computed(layers.begin), (
            f"position {layers.begin} has no input"
        )
        is_same = len(names) == len(rows)
        return self.x_1ND if is_same else torch.cat([rows[name] for name in names], dim=1)


class LayeredForward:
    """At most one pass at a time."""

    def __init__(self, runner: RangeRunner) -> None:
        self.runner = runner
        self.hidden: HiddenStates | None = None

    def run(self, layers: LayerRange) -> Tensor:
        """x_1ND after this part of the work."""
        x_1ND = None
        if layers.begin > 0:
            assert self.hidden is not None, f"position {layers.begin} has no input"
            x_1ND = self.hidden.select(layers)
        for span in spans_of(layers):
            x_1ND = self.run_span(span, layers, x_1ND)
        assert x_1ND is not None, "nothing was computed"
        computed = layers.num_computed(layers.end)
        self.hidden = None if layers.is_last else HiddenStates(layers.chunks, x_1ND, computed)
        return x_1ND

    def run_span(self, span: LayerSpan, layers: LayerRange, x_1ND: Tensor | None) -> Tensor:
        """One call; the rows of x_1ND that it computes are replaced."""
        begin, end = span.tokens.start, span.tokens.stop
        batch = InputBatch.of(select_tokens(layers.chunks, span.tokens), self.runner.kv_layout)
        part_1ND = None if span.layers.start == 0 or x_1ND is None else x_1ND[:, begin:end]
        part_1ND = self.runner.forward_range(batch, span.layers.start, span.layers.stop, part_1ND)
        if len(span.tokens) == layers.num_tokens:
            return part_1ND
        if x_1ND is None:
            x_1ND = part_1ND.new_empty(1, layers.num_tokens, part_1ND.shape[2])
        x_1ND[:, begin:end] = part_1ND
        return x_1ND
