"""`LayeredPrefill`: chunks of prompts that several steps compute layer by layer, between decodes.

    step 1   decodes   layers 0 and 1 of all tokens, layer 2 of the first 48
    step 2   decodes   layer 2 of the others, layer 3, layer 4 of the first 112
    ...
    step 9   decodes   the rest of layer 29: the chunks are computed, and sampled if a prompt ends

While a stream decodes, a step has time for only a few tokens of a prompt. Each chunk reads all
earlier keys, so in chunks of a few tokens a long prompt takes five times as long; in chunks of up
to a few hundred tokens, divided by layers, it takes no longer than alone. A step may end within a
layer, because a layer of a few hundred tokens takes half a step. The model runner keeps the hidden
states between steps (layered_forward.py). Tokens count as computed after the last layer: a group
that is preempted or cancelled before only loses this work.

Differs from chunked prefill (Sarathi-Serve, Agrawal 2024), which divides a prompt by tokens only;
as in layered prefill (Lee 2025), which assigns each step one group of layers.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.engine.scheduling.plan import Chunk, LayerRange

BLOCK = 32
"""Minimum tokens of one layer in a step, and the granularity at which a step may end within a
layer: the block size of queries in the attention kernel."""


@dataclass(eq=False)
class LayeredPrefill:
    """The state between two steps."""

    chunks: dict[str, list[Chunk]]
    """By request id."""
    num_layers: int
    """Number of layers of the model."""
    position: int = 0
    """Position up to which the layers are computed (`LayerRange`)."""

    @property
    def all_chunks(self) -> list[Chunk]:
        return [chunk for chunks in self.chunks.values() for chunk in chunks]

    def next_range(self, least: int, most: int) -> LayerRange:
        """From `least` to `most` tokens of one layer each, as far as there are any: up to the end
        of a layer if possible, as each part of a layer is a call of its own."""
        chunks, begin = self.all_chunks, self.position
        size = sum(len(chunk.tokens) for chunk in chunks)
        end = (begin + most) // size * size
        if end < begin + least:
            end = begin + (least + most) // 2
            end -= end % size % BLOCK
        end = max(end, min(begin + BLOCK, (begin // size + 1) * size))
        return LayerRange(chunks, begin, min(end, size * self.num_layers), self.num_layers)

    def remove(self, request_id: str) -> None:
        """Remove a request that has finished or was preempted."""
        if request_id not in self.chunks:
            return
        before = LayerRange(self.all_chunks, 0, self.position, self.num_layers)
        del self.chunks[request_id]
        computed = zip(before.chunks, before.num_computed(self.position), strict=True)
        self.position = sum(num for chunk, num in computed if chunk.request.id != request_id)
