"""`LayeredForward`: a forward pass whose layers are run in several engine steps.

    x_1ND = layered.run(plan.layered)       some layers of the chunks; after the last one, x_1ND is
                                            what `ModelRunner.forward` returns for them

Between two steps it keeps the hidden states x_ND of one such pass. A range that begins with layer 0
replaces them, so a pass that is given up needs no message. Chunks that have left are left out: the
rows of a batch do not depend on each other. Why layers are divided: scheduling/layered_prefill.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

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


@dataclass(frozen=True)
class HiddenStates:
    """What the next layer reads."""

    chunks: list[Chunk]
    x_1ND: Tensor
    """Their tokens, chunk after chunk."""
    layer: int

    def select(self, chunks: list[Chunk]) -> Tensor:
        """The rows of some of the chunks, in the order of these."""
        if chunks == self.chunks:
            return self.x_1ND
        sizes = [len(chunk.tokens) for chunk in self.chunks]
        rows = dict(zip(map(id, self.chunks), self.x_1ND.split(sizes, dim=1), strict=True))
        return torch.cat([rows[id(chunk)] for chunk in chunks], dim=1)


class LayeredForward:
    """At most one pass at a time."""

    def __init__(self, runner: RangeRunner) -> None:
        self.runner = runner
        self.hidden: HiddenStates | None = None

    def run(self, layers: LayerRange) -> Tensor:
        """x_1ND after these layers."""
        hidden, x_1ND, chunks = self.hidden, None, layers.chunks
        if layers.begin > 0:
            assert hidden is not None and hidden.layer == layers.begin, (
                f"layer {layers.begin} has no input"
            )
            x_1ND = hidden.select(chunks)
        batch = InputBatch.of(chunks, self.runner.kv_layout)
        x_1ND = self.runner.forward_range(batch, layers.begin, layers.end, x_1ND)
        self.hidden = None if layers.is_last else HiddenStates(chunks, x_1ND, layers.end)
        return x_1ND
