"""The runner: a Plan -> chances and vectors. Here, and in what it returns, are the tensors.

    1  copies      pages that a fork is about to write into
    2  sources     packed through the encoder without padding; their rows go into pages
    3  embeddings  likewise; nothing is kept
    4  chunks      one packed pass of the decoder, or several; chances where a token is chosen

The same layers that train: a packed row of tokens, and a cache that knows pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from weft.cache.kv_groups import KVCacheLayout
from weft.cache.kv_store import KVStore, PagedKVCache, ScratchKVCache
from weft.core.device import device_of
from weft.core.errors import UsageError
from weft.core.forward_batch import ForwardBatch
from weft.engine.chances import Chances, ComingChances
from weft.engine.compiled_decode import CompiledDecode
from weft.engine.copying import copy_pages
from weft.engine.lanes import Lanes, Turn
from weft.engine.pack import Packed, consecutive, written_out
from weft.engine.scheduling.plan import Chunk, Plan, ScheduledSource
from weft.models.build import Model
from weft.models.compile import HookWatch, decode_positions, rotary_tables, stack_weights
from weft.models.stack import Stack
from weft.models.transformer import Decoder, EncoderDecoder
from weft.native.compiled_stack import CompiledStack
from weft.native.stack_weights import LayerKV

SCRATCH_ROWS = 16
"""Tokens of a page while texts are read as a whole. Not the pool's page size, and needs no setting:
bits do not depend on it, one layer's rows at a time are kept, at most 15 of them empty for a text,
and smaller pages would only make the tables longer."""
SCORED_ROWS = 256
"""Rows of logits at a time where only the log-probability of one token each is wanted."""


class Bursting(Protocol):
    """Who chooses tokens between the passes of a plan."""

    def write(self, lanes: Lanes, decode: CompiledDecode) -> bool:
        """All passes that are left, at once. False, and nothing was done: `choose` is asked behind
        the next one."""

    def choose(self, chances: Chances) -> Turn:
        """The chances of the lanes that still go -> what they write, who goes on, who takes over
        whom."""


@dataclass
class Results:
    """What a pass gave."""

    chances: Chances | None = None
    """Of the places at which a token is chosen, chunk by chunk; see `rows`."""
    rows: list[slice] = field(default_factory=list)
    """The places of each chunk of the plan; none where more of its prompt comes."""
    vectors: list[Tensor] = field(default_factory=list)
    """x_TD of each embedded text."""


class Runner:
    """Executes plans on one model."""

    def __init__(self, model: Model, layout: KVCacheLayout, store: KVStore | None) -> None:
        self.model, self.page_layout, self.store = model, layout, store
        self.device = device_of(model)
        self.hook_watch, self.is_hooked = HookWatch(model), False
        self.compiled_reader = self.compile_reader()
        self.compiled_decoder = self.compile_decoder()

    def compile_reader(self) -> CompiledStack | None:
        """The stack that reads texts as a whole, over scratch pages; None: the modules compute."""
        weights = stack_weights(self.reader)
        return None if weights is None else CompiledStack(weights)

    def compile_decoder(self) -> CompiledStack | None:
        """The decoder over the pages of the store; None: the modules compute."""
        store = self.store
        weights = None if store is None else stack_weights(self.stack, self.writer.head)
        if store is None or weights is None:
            return None
        kv = []
        for layer in range(len(store.layer_locations)):
            rows = store.layer_rows(layer)
            kv.append(LayerKV(rows["k"], rows["v"], store.group_of(layer)))
        return CompiledStack(weights, kv)

    @torch.inference_mode()
    def run(self, plan: Plan, burst: Bursting | None = None) -> Results:
        """`burst`: chooses tokens between the passes of a plan that has several."""
        results, self.is_hooked = Results(), self.hook_watch.is_hooked()
        if plan.copies:
            assert self.store is not None, "a model without a cache was told to copy pages"
            copy_pages(self.store, plan.copies)
        if plan.sources:
            self.write_sources(plan.sources)
        if plan.poolings:
            results.vectors = self.encode([embedding.ids for embedding in plan.poolings])
        if burst is not None:
            self.decode_far(plan, burst)
        elif plan.chunks:
            self.decode(plan.chunks, results)
        return results

    def encode(self, texts: Sequence[Sequence[int]]) -> list[Tensor]:
        """x_TD of each text, packed. Of a decoder, what its head reads."""
        x_1ND, packed = self.packed_encode(texts)
        return list(x_1ND[0].split(torch.from_numpy(packed.offsets).diff().tolist()))

    def packed_encode(self, texts: Sequence[Sequence[int]]) -> tuple[Tensor, Packed]:
        """x_1ND of all texts one behind the other: each sees itself alone."""
        packed = Packed.of(texts, [0] * len(texts))
        table_BP = written_out(consecutive([len(text) for text in texts], SCRATCH_ROWS))
        layout = packed.layout(table_BP, self.device)
        slots_N = packed.slots(table_BP, SCRATCH_ROWS, self.device)
        scratch = ScratchKVCache(layout, slots_N, SCRATCH_ROWS)
        batch, compiled = self.batch(packed, scratch), self.compiled_reader
        if compiled is None or self.is_hooked:
            return self.reader(batch), packed
        rows, _ = scratch.write_slots(0, self.reader.kv_specs()[0])
        x_ND = compiled.forward(
            *(self.reader.embed(batch)[0], packed.placed_1N[0], {0: layout}, {0: slots_N}),
            rotary_tables(self.reader, int(packed.ends.max())),
            LayerKV(rows["k"], rows["v"]),
        )
        return x_ND[None], packed

    def write_sources(self, sources: Sequence[ScheduledSource]) -> None:
        """Encode sources and put what cross-attention reads of them into their pages."""
        assert self.store is not None, "an encoder-decoder without pages"
        memory_1ND, packed = self.packed_encode([encoding.ids for encoding in sources])
        first = len(self.page_layout.self_groups)
        slots = {
            first + index: packed.slots(
                written_out([encoding.source.page_tables[index] for encoding in sources]),
                self.store.page_size,
                self.device,
            )
            for index in range(len(self.page_layout.cross_groups))
        }
        for layer, rows in self.stack.source_rows(memory_1ND):
            self.store.write(layer, rows, slots[self.store.layer_locations[layer][0]])

    def decode(self, chunks: Sequence[Chunk], results: Results) -> None:
        """One pass over all chunks; chances where a token is chosen."""
        x_1ND = self.run_chunks(chunks)
        wanted: list[int] = []
        end = 0
        for chunk in chunks:
            end += len(chunk.tokens)
            count = 1 + chunk.num_drafts if chunk.num_samples else 0
            results.rows.append(slice(len(wanted), len(wanted) + count))
            wanted.extend(range(end - count, end))
        if wanted:
            # in a step that only decodes all are wanted, as they stand
            results.chances = self.chances(x_1ND if len(wanted) == end else x_1ND[:, wanted])

    def decode_far(self, plan: Plan, burst: Bursting) -> None:
        """Pass after pass, until a plan's last one or until no lane goes on."""
        assert self.store is not None, "a decoder without pages"
        twins = [chunk.with_spares() for chunk in plan.chunks]
        lanes = Lanes.of([one for some in twins for one in some], self.page_layout)
        # spare lanes have nothing to run in the first pass
        running = lanes.some(np.array([one is some[0] for some in twins for one in some]))
        decode = self.compiled_decode(int(lanes.packed.ends.max()) + plan.num_steps - 1)
        for left in reversed(range(plan.num_steps)):
            if decode is not None and burst.write(running, decode):
                return
            turn = burst.choose(self.coming(running, decode))
            if turn.forks_2N is not None:
                copy_pages(self.store, lanes.fork(turn.forks_2N, self.store.page_size))
            if left == 0 or not turn.goes_B.any():
                return
            running = lanes = lanes.next(turn)

    def compiled_decode(self, num_positions: int) -> CompiledDecode | None:
        """Decode steps at positions below `num_positions` in one call each; None: by parts."""
        compiled = self.compiled_decoder
        if compiled is None or not compiled.can_decode or self.is_hooked:
            return None
        rows = decode_positions(self.stack, num_positions)
        return None if rows is None else CompiledDecode(compiled, rows)

    def coming(self, lanes: Lanes, decode: CompiledDecode | None) -> Chances:
        """The chances behind the next pass over these lanes."""
        if decode is None:
            return self.chances(self.run_lanes(lanes))
        run, quick = lambda: self.run_lanes(lanes)[0], partial(decode.top_k, lanes)
        return ComingChances(self.writer.head, len(lanes.packed.starts), run, quick)

    def run_chunks(self, chunks: Sequence[Chunk]) -> Tensor:
        """x_1ND of all chunks, packed."""
        return self.run_lanes(Lanes.of(chunks, self.page_layout))

    def run_lanes(self, lanes: Lanes) -> Tensor:
        cache = self.paged_pass(lanes)
        batch, compiled = self.batch(lanes.packed, cache), self.compiled_decoder
        if compiled is None or self.is_hooked:
            return self.stack(batch)
        x_ND = compiled.forward(
            *(self.stack.embed(batch)[0], lanes.packed.placed_1N[0], cache.layouts, cache.slots),
            rotary_tables(self.stack, int(lanes.packed.ends.max())),
        )
        return x_ND[None]

    def paged_pass(self, lanes: Lanes) -> PagedKVCache:
        assert self.store is not None, "a decoder without pages"
        return lanes.paged(self.store, self.device)

    def batch(self, packed: Packed, cache: PagedKVCache | ScratchKVCache) -> ForwardBatch:
        ids_1N, placed_1N = packed.ids_1N.to(self.device), packed.placed_1N.to(self.device)
        return ForwardBatch(ids_1N, position_ids_BT=placed_1N, cache=cache)

    @torch.inference_mode()
    def foreseen(self, x_TD: Tensor, targets: Sequence[int]) -> list[float]:
        """The log-probability of the token that follows each vector."""
        targets_T = torch.tensor(list(targets), device=x_TD.device)
        found: list[float] = []
        parts = zip(x_TD.split(SCORED_ROWS), targets_T.split(SCORED_ROWS), strict=True)
        for some_ND, ids_N in parts:
            logits_NV = self.chances(some_ND[None]).logits_NV.float()
            found += logits_NV.log_softmax(-1).gather(1, ids_N[:, None])[:, 0].tolist()
        return found

    def need_store(self) -> KVStore:
        """The pages; an error for a model that has none."""
        if self.store is None:
            raise UsageError(
                f"this model is of kind {self.model.config.kind}: it keeps no rows, so there is no "
                "cache to look at, save or load. Use a model that writes."
            )
        return self.store

    @property
    def packs_sequences(self) -> bool:
        """Whether a plan may have several decode steps: the model generates tokens."""
        return isinstance(self.model, Decoder | EncoderDecoder)

    @property
    def reader(self) -> Stack:
        """The stack that reads a text as a whole."""
        return self.model.decoder if isinstance(self.model, Decoder) else self.model.encoder

    @property
    def writer(self) -> Decoder | EncoderDecoder:
        assert isinstance(self.model, Decoder | EncoderDecoder), "an encoder does not write"
        return self.model

    @property
    def stack(self) -> Stack:
        return self.writer.decoder

    def chances(self, x_1ND: Tensor) -> Chances:
        return Chances(self.writer.head, x_1ND[0], is_hooked=self.is_hooked)
