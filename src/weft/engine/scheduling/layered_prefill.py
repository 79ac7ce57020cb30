"""`LayeredPrefill`: chunks of prompts whose layers are computed in several steps, between decodes.

    step 1   decodes   layers 0-3 of the chunks
    step 2   decodes   layers 4-7
    ...
    step 8   decodes   layers 28-29: the chunks are computed, and sampled if their prompt ends

While a stream decodes, a step has time for a few tokens of a prompt. Every chunk reads all keys
before it, so in chunks of a few tokens a long prompt takes five times as long; in these chunks of
up to a few hundred tokens it takes as long as alone, beside the decodes. The hidden states between
two steps are kept by the model runner (layered_forward.py). Until the last layer nothing counts as
computed: a group that is preempted or cancelled in between only loses this work.

Differs from chunked prefill (Sarathi-Serve, Agrawal 2024), which divides a prompt by tokens only;
as in layered prefill (Lee 2025), which assigns each step one group of layers.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.engine.scheduling.plan import Chunk, LayerRange


@dataclass(eq=False)
class LayeredPrefill:
    """The state between two steps."""

    chunks: dict[str, list[Chunk]]
    """By request id."""
    num_layers: int
    """Of the model."""
    next_layer: int = 0

    @property
    def all_chunks(self) -> list[Chunk]:
        return [chunk for chunks in self.chunks.values() for chunk in chunks]

    def next_range(self, num_layers: int) -> LayerRange:
        """The next layers, at most so many."""
        end = min(self.num_layers, self.next_layer + num_layers)
        return LayerRange(self.all_chunks, self.next_layer, end, self.num_layers)
