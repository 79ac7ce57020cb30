"""The runner: a Plan -> chances and vectors. Here, and in what it returns, are the tensors.

    1  copies      pages that a fork is about to write into
    2  sources     packed through the encoder without padding; their rows go into pages
    3  embeddings  likewise; nothing is kept
    4  chunks      one packed pass of the decoder, or several; chances where a token is chosen

The same layers that train: a packed row of tokens, and a cache that knows pages.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from weft.engine.scheduling.plan import Plan, ScheduledSource
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


class TokenChooser(Protocol):
    """Chooses the tokens of a plan between its forward passes."""

    def run_greedy(self, lanes: Lanes, decode: CompiledDecode) -> bool:
        """All remaining decode steps at once. False, without any change: `choose` is called after
        the next forward pass."""

    def choose(self, chances: Chances) -> Turn | None:
        """Choose from the logits of the sampled rows of a forward pass. Returns the tokens of the
        next decode step of a multi-step plan, which sequences continue, and which are forked."""


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
    def run(self, plan: Plan, chooser: TokenChooser) -> list[Tensor]:
        """Execute a plan; returns x_TD of each pooled text."""
        self.is_hooked = self.hook_watch.is_hooked()
        if plan.copies:
            assert self.store is not None, "a model without a KV cache was told to copy pages"
            copy_pages(self.store, plan.copies)
        if plan.sources:
            self.write_sources(plan.sources)
        vectors = self.encode([one.ids for one in plan.poolings]) if plan.poolings else []
        if plan.chunks:
            self.decode(plan, chooser)
        return vectors

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

    def decode(self, plan: Plan, chooser: TokenChooser) -> None:
        """`plan.num_steps` forward passes; the chooser picks tokens after each. The first computes
        all chunks, the others one token of each sequence that continues."""
        lanes, running = self.first_lanes(plan)
        is_multi_step, compiled = plan.num_steps > 1, None
        if is_multi_step:
            compiled = self.compiled_decode(int(lanes.packed.ends.max()) + plan.num_steps - 1)
        for step in range(plan.num_steps):
            if compiled is not None and chooser.run_greedy(running, compiled):
                return
            chances = self.next_logits(plan, step, running, compiled)
            turn = None if chances is None else chooser.choose(chances)
            if turn is None:
                return
            if turn.forks_2N is not None:
                store = self.need_store()
                copy_pages(store, lanes.fork(turn.forks_2N, store.page_size))
            if not turn.goes_B.any():
                return
            running = lanes = lanes.next(turn)

    def first_lanes(self, plan: Plan) -> tuple[Lanes, Lanes]:
        """The sequences of a plan, spares included; and those that the first pass computes."""
        if plan.num_steps == 1:
            lanes = Lanes.of(plan.chunks, self.page_layout)
            return lanes, lanes
        chunks = [one for chunk in plan.chunks for one in chunk.with_spares()]
        lanes = Lanes.of(chunks, self.page_layout)
        # spare sequences take part from the second step on
        first = {id(chunk) for chunk in plan.chunks}
        return lanes, lanes.some(np.array([id(one) in first for one in chunks]))

    def next_logits(
        self, plan: Plan, step: int, lanes: Lanes, compiled: CompiledDecode | None
    ) -> Chances | None:
        """Logits after the next forward pass, of the rows that are sampled; None if there are
        none."""
        if compiled is not None:
            run, quick = lambda: self.run_lanes(lanes)[0], partial(compiled.top_k, lanes)
            return ComingChances(self.writer.head, len(lanes.packed.starts), run, quick)
        x_1ND = self.run_lanes(lanes)
        rows = plan.sampled_rows if step == 0 else range(x_1ND.shape[1])
        if not rows:
            return None
        # in a step that only decodes, all rows are sampled, in this order
        return self.chances(x_1ND if len(rows) == x_1ND.shape[1] else x_1ND[:, rows])

    def compiled_decode(self, num_positions: int) -> CompiledDecode | None:
        """Decode steps at positions below `num_positions` in one call each; None: by parts."""
        compiled = self.compiled_decoder
        if compiled is None or not compiled.can_decode or self.is_hooked:
            return None
        rows = decode_positions(self.stack, num_positions)
        return None if rows is None else CompiledDecode(compiled, rows)

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
