"""The model runner executes a Plan: forward passes, with the chooser called after each of them.

    1  copies     copy-on-write of the pages that forked sequences append to
    2  sources    packed forward pass of the encoder; cross-attention rows are written to pages
    3  poolings   the same for texts to embed or score; nothing is cached
    4  chunks     `num_steps` packed forward passes of the decoder; after each, the chooser gets the
                  logits of the sampled positions and picks the tokens of the next one
    5  layered    some layers of further chunks; the chooser gets logits of the last ones as well

The stack runs in one call of the native library (CompiledStack), which is built once; where the
library does not support the model, or a module has a hook, the modules run and give the same bits.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.cache.kv_groups import KVCacheLayout
from weft.cache.kv_store import KVStore, PagedKVCache, ScratchKVCache
from weft.core.device import device_of
from weft.core.errors import UsageError
from weft.core.forward_batch import ForwardBatch
from weft.engine.input_batch import (
    InputBatch,
    PackedTokens,
    SampledTokens,
    consecutive_tables,
    pad_page_tables,
)
from weft.engine.layered_forward import LayeredForward
from weft.engine.logits import LazyLogits, NextTokenLogits
from weft.engine.logprobs import TokenLogprob, token_logprob
from weft.engine.scheduling.plan import LayerRange, Plan, ScheduledSource
from weft.models.build import AnyModel
from weft.models.compile import HookWatch, position_rows, stack_weights
from weft.models.stack import Stack
from weft.models.transformer import Decoder, EncoderDecoder
from weft.native.compiled_stack import CompiledStack
from weft.native.kernels import TopK
from weft.native.stack_weights import LayerKV, PositionRows

log = logging.getLogger(__name__)

SCRATCH_PAGE_SIZE = 16
"""Tokens per page while texts are encoded. Independent of the pool's page size and not a setting:
results do not depend on it, and rows of one layer at a time are stored."""
CPU = torch.device("cpu")
SCORED_ROWS = 256
"""Rows of logits computed at a time for the log-probabilities of given tokens."""


@dataclass(frozen=True)
class CompiledDecode:
    """Decode steps of one plan by the compiled stack, from embedding to top k: one call for each
    step, or one for all of them in greedy search."""

    compiled: CompiledStack
    position_rows: PositionRows
    """As far as the last step of the plan."""

    @property
    def is_light(self) -> bool:
        """Whether `greedy` is faster than one call for each step."""
        return self.compiled.is_light

    def top_k(self, batch: InputBatch, k: int, banned: Sequence[int]) -> TopK:
        """One step of these sequences."""
        ids_B, layouts = batch.packed.ids_1N[0], batch.layouts(CPU)
        return self.compiled.top_k(ids_B, layouts, k, banned, self.position_rows)

    def greedy(
        self,
        batch: InputBatch,
        ends_B: NDArray[np.int64],
        limits_B: NDArray[np.int64],
        scores_B: NDArray[np.float64],
        banned: Sequence[int],
    ) -> NDArray[np.int64]:
        """All steps until each sequence has ended or reached its limit: tokens_BT, -1 after the
        last one. `scores_B` is updated."""
        ids_B, layouts = batch.packed.ids_1N[0].numpy(), batch.layouts(CPU)
        arrays = (ends_B, limits_B, scores_B)
        return self.compiled.greedy(ids_B, layouts, *arrays, banned, self.position_rows)


class TokenChooser(Protocol):
    """Chooses the tokens of a plan after its forward passes."""

    def run_greedy(self, batch: InputBatch, decode: CompiledDecode) -> bool:
        """Run all remaining decode steps at once. False, without any change, if `choose` has to be
        called after the next forward pass."""

    def choose(self, logits: NextTokenLogits) -> SampledTokens | None:
        """Choose from the logits of the sampled positions. Returns the tokens of the next decode
        step of a multi-step plan, which sequences continue, and which are forked; None after the
        last step."""


class ModelRunner:
    """Executes plans on one model."""

    def __init__(self, model: AnyModel, layout: KVCacheLayout, store: KVStore | None) -> None:
        self.model, self.kv_layout, self.store = model, layout, store
        self.device = device_of(model)
        self.hook_watch, self.is_hooked, self.was_hooked = HookWatch(model), False, False
        self.positions: dict[Stack, PositionRows] = {}
        self.compiled_text_stack = self.compile_text_stack()
        self.compiled_decoder = self.compile_decoder()
        self.layered = LayeredForward(self)

    def compile_text_stack(self) -> CompiledStack | None:
        """The stack that encodes whole texts, over scratch pages; None: the modules run."""
        weights = stack_weights(self.text_stack)
        return None if weights is None else CompiledStack(weights)

    def compile_decoder(self) -> CompiledStack | None:
        """The decoder over the pages of the store; None: the modules run."""
        store = self.store
        weights = None if store is None else stack_weights(self.stack, self.generator.head)
        if store is None or weights is None:
            return None
        kv = []
        for layer in range(len(store.layer_locations)):
            rows = store.layer_rows(layer)
            kv.append(LayerKV(rows["k"], rows["v"], store.group_of(layer)))
        return CompiledStack(weights, kv)

    @torch.inference_mode()
    def run(self, plan: Plan, chooser: TokenChooser) -> list[Tensor]:
        """Execute a plan; returns the hidden states x_TD of each text to embed or score. A module
        that was given another forward is noticed by the next plan with a prompt or a text."""
        self.is_hooked = self.hook_watch.is_hooked(is_quick=plan.total_tokens == len(plan.chunks))
        if self.is_hooked and not self.was_hooked:
            self.warn_hooked()
        if plan.copies:
            self.need_store().copy_pages(plan.copies)
        if plan.sources:
            self.write_sources(plan.sources)
        hidden = self.encode([one.ids for one in plan.poolings]) if plan.poolings else []
        if plan.layered is not None:
            self.decode_layered(plan, plan.layered, chooser)
        elif plan.chunks:
            self.decode(plan, chooser)
        return hidden

    def warn_hooked(self) -> None:
        """Once: the compiled stack would be used, were it not for a hook."""
        self.was_hooked = True
        if self.compiled_text_stack is not None or self.compiled_decoder is not None:
            log.warning(
                "slow path: a module of the model has a forward hook, so its layers are called "
                "one by one instead of all in one native call. Remove the hook for full speed."
            )

    def encode(self, texts: Sequence[Sequence[int]]) -> list[Tensor]:
        """Hidden states x_TD of each text; of a decoder, the input of its LM head."""
        x_1ND, packed = self.forward_texts(texts)
        return list(x_1ND[0].split(torch.from_numpy(packed.offsets).diff().tolist()))

    def forward_texts(self, texts: Sequence[Sequence[int]]) -> tuple[Tensor, PackedTokens]:
        """x_1ND of all texts in one packed forward pass; no text attends to another."""
        packed, stack = PackedTokens.of(texts, [0] * len(texts)), self.text_stack
        lengths = [len(text) for text in texts]
        table_BP = pad_page_tables(consecutive_tables(lengths, SCRATCH_PAGE_SIZE))
        layout = packed.layout(table_BP, self.device)
        slots_N = packed.slots(table_BP, SCRATCH_PAGE_SIZE, self.device)
        scratch = ScratchKVCache(layout, slots_N, SCRATCH_PAGE_SIZE)
        compiled = self.compiled_text_stack
        if compiled is None or self.is_hooked:
            return stack(self.forward_batch(packed, scratch)), packed
        rows, _ = scratch.write_slots(0, stack.kv_specs()[0])
        x_ND, position_rows = self.embed(compiled, stack, packed, scratch)
        kv, positions_N = LayerKV(rows["k"], rows["v"]), packed.positions_1N[0]
        x_ND = compiled.forward(x_ND, positions_N, {0: layout}, {0: slots_N}, position_rows, kv)
        return x_ND[None], packed

    def embed(
        self,
        compiled: CompiledStack,
        stack: Stack,
        packed: PackedTokens,
        cache: PagedKVCache | ScratchKVCache,
    ) -> tuple[Tensor, PositionRows]:
        """The input of the first layer, x_ND, by the compiled stack or the module; and the position
        tables of the layers."""
        rows = self.position_rows(stack, int(packed.ends.max()))
        x_ND = compiled.embed(packed.ids_1N[0], packed.positions_1N[0], rows)
        if x_ND is None:
            x_ND = stack.embed(self.forward_batch(packed, cache))[0]
        return x_ND, rows

    def position_rows(self, stack: Stack, num_positions: int) -> PositionRows:
        """The position tables of a stack, read again only where a sequence is longer than they
        are."""
        rows = self.positions.get(stack)
        if rows is None or rows.num_positions < num_positions:
            rows = self.positions[stack] = position_rows(stack, num_positions)
        return rows

    def write_sources(self, sources: Sequence[ScheduledSource]) -> None:
        """Encode sources and write the rows of cross-attention to their pages."""
        store = self.need_store()
        memory_1ND, packed = self.forward_texts([one.ids for one in sources])
        first = len(self.kv_layout.self_groups)
        slots = {
            first + index: packed.slots(
                pad_page_tables([one.source.page_tables[index] for one in sources]),
                store.page_size,
                self.device,
            )
            for index in range(len(self.kv_layout.cross_groups))
        }
        for layer, rows in self.stack.source_rows(memory_1ND):
            store.write(layer, rows, slots[store.layer_locations[layer][0]])

    def decode(self, plan: Plan, chooser: TokenChooser) -> None:
        """`plan.num_steps` forward passes; the chooser picks tokens after each. The first computes
        all chunks, the others one token of each sequence that continues."""
        batch, running = self.first_batches(plan)
        is_multi_step, compiled = plan.num_steps > 1, None
        if is_multi_step:
            compiled = self.compiled_decode(int(batch.packed.ends.max()) + plan.num_steps - 1)
        for step in range(plan.num_steps):
            if compiled is not None and chooser.run_greedy(running, compiled):
                return
            logits = self.next_logits(plan, step, running, compiled)
            sampled = None if logits is None else chooser.choose(logits)
            if sampled is None:
                return
            if sampled.forks_2N is not None:
                store = self.need_store()
                store.copy_pages(batch.fork(sampled.forks_2N, store.page_size))
            if not sampled.continues_B.any():
                return
            running = batch = batch.advance(sampled)

    def decode_layered(self, plan: Plan, layers: LayerRange, chooser: TokenChooser) -> None:
        """One forward pass of the chunks that this step computes as a whole, and some layers of the
        others."""
        parts, chunks = list[Tensor](), plan.whole_chunks
        if chunks:
            parts.append(self.forward(InputBatch.of(chunks, self.kv_layout)))
        x_1ND = self.layered.run(layers)
        if layers.is_last:
            parts.append(x_1ND)
        if plan.sampled_rows:
            chooser.choose(self.logits(torch.cat(parts, dim=1)[:, plan.sampled_rows]))

    def first_batches(self, plan: Plan) -> tuple[InputBatch, InputBatch]:
        """All sequences of a plan, spare ones included; and those that the first step computes."""
        if plan.num_steps == 1:
            batch = InputBatch.of(plan.chunks, self.kv_layout)
            return batch, batch
        chunks = [one for chunk in plan.chunks for one in chunk.with_spares()]
        batch = InputBatch.of(chunks, self.kv_layout)
        # spare sequences take part from the second step on
        first = {id(chunk) for chunk in plan.chunks}
        return batch, batch.select(np.array([id(one) in first for one in chunks]))

    def next_logits(
        self, plan: Plan, step: int, batch: InputBatch, compiled: CompiledDecode | None
    ) -> NextTokenLogits | None:
        """Logits after the next forward pass at the sampled positions; None if there are none."""
        if compiled is not None:
            forward, fused = lambda: self.forward(batch)[0], partial(compiled.top_k, batch)
            return LazyLogits(self.generator.head, len(batch.packed.starts), forward, fused)
        x_1ND = self.forward(batch)
        rows = plan.sampled_rows if step == 0 else range(x_1ND.shape[1])
        if not rows:
            return None
        # in a step that only decodes, all rows are sampled, in this order
        return self.logits(x_1ND if len(rows) == x_1ND.shape[1] else x_1ND[:, rows])

    def compiled_decode(self, num_positions: int) -> CompiledDecode | None:
        """Decode steps at positions below `num_positions` in one call each; None: not supported."""
        compiled = self.compiled_decoder
        if compiled is None or not compiled.can_decode or self.is_hooked:
            return None
        rows = self.position_rows(self.stack, num_positions)
        return CompiledDecode(compiled, rows) if rows.can_embed else None

    def forward(self, batch: InputBatch) -> Tensor:
        """x_1ND after the last layer; the rows of the new tokens are written to their pages."""
        cache = batch.paged_cache(self.need_store(), self.device)
        packed, compiled = batch.packed, self.compiled_decoder
        if compiled is None or self.is_hooked:
            return self.stack(self.forward_batch(packed, cache))
        x_ND, rows = self.embed(compiled, self.stack, packed, cache)
        positions_N = packed.positions_1N[0]
        return compiled.forward(x_ND, positions_N, cache.layouts, cache.slots, rows)[None]

    def forward_range(
        self, batch: InputBatch, begin: int, end: int, x_1ND: Tensor | None
    ) -> Tensor:
        """The same for layers begin to end, the final norm only after the last one. `x_1ND`: the
        input of layer `begin`, None before layer 0."""
        cache = batch.paged_cache(self.need_store(), self.device)
        packed, compiled = batch.packed, self.compiled_decoder
        if compiled is None or self.is_hooked:
            return self.stack.forward_range(self.forward_batch(packed, cache), begin, end, x_1ND)
        if x_1ND is None:
            x_ND, rows = self.embed(compiled, self.stack, packed, cache)
        else:
            x_ND, rows = x_1ND[0], self.position_rows(self.stack, int(packed.ends.max()))
        inputs = (x_ND, packed.positions_1N[0], cache.layouts, cache.slots, rows)
        return compiled.forward(*inputs, layers=range(begin, end))[None]

    def forward_batch(
        self, packed: PackedTokens, cache: PagedKVCache | ScratchKVCache
    ) -> ForwardBatch:
        ids_1N, positions_1N = packed.ids_1N.to(self.device), packed.positions_1N.to(self.device)
        return ForwardBatch(ids_1N, position_ids_BT=positions_1N, cache=cache)

    @torch.inference_mode()
    def score(self, x_TD: Tensor, targets: Sequence[int], num_top: int = 0) -> list[TokenLogprob]:
        """The log-probability of the token that follows each hidden state."""
        targets_T = torch.tensor(list(targets), device=x_TD.device)
        logprobs: list[TokenLogprob] = []
        parts = zip(x_TD.split(SCORED_ROWS), targets_T.split(SCORED_ROWS), strict=True)
        for x_ND, ids_N in parts:
            logits_NV, ids = self.logits(x_ND[None]).logits_NV.float(), ids_N.tolist()
            if num_top:
                rows = zip(logits_NV, ids, strict=True)
                logprobs += [token_logprob(logits_V, token, num_top) for logits_V, token in rows]
                continue
            logp_N = logits_NV.log_softmax(-1).gather(1, ids_N[:, None])[:, 0]
            logprobs += map(TokenLogprob, ids, logp_N.tolist())
        return logprobs

    def logits(self, x_1ND: Tensor) -> NextTokenLogits:
        return NextTokenLogits(self.generator.head, x_1ND[0], is_hooked=self.is_hooked)

    def need_store(self) -> KVStore:
        """The KV store; a UsageError for an encoder, which has none."""
        if self.store is None:
            raise UsageError(
                f"this model is of kind {self.model.config.kind} and has no KV cache: there is "
                "nothing to inspect, save or load. Use a decoder or an encoder-decoder."
            )
        return self.store

    @property
    def can_generate(self) -> bool:
        return isinstance(self.model, Decoder | EncoderDecoder)

    @property
    def text_stack(self) -> Stack:
        """The stack that encodes whole texts."""
        return self.model.decoder if isinstance(self.model, Decoder) else self.model.encoder

    @property
    def generator(self) -> Decoder | EncoderDecoder:
        assert isinstance(self.model, Decoder | EncoderDecoder), "an encoder generates no tokens"
        return self.model

    @property
    def stack(self) -> Stack:
        return self.generator.decoder
