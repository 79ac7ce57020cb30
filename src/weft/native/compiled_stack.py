"""`CompiledStack`: all layers of a Transformer stack as one call of the native library.

    weights = StackWeights(...)             models/compile.py reads them from modules
    stack = CompiledStack(weights, kv)      C structures are built once
    stack.forward(x_ND, ...)                packed tokens through all layers and the final norm
    stack.top_k(ids_B, layouts, ...)        one decode step, from the embedding to the top k
    stack.greedy(ids_B, layouts, ...)       the loop of decode steps of greedy search

For a packed batch over pages of a KV cache: grouped-query attention with or without RoPE, causal,
with a window or bidirectional, cross-attention, MLP or gated MLP, any placement of the norms. The
bits are those of the modules. At one token a sequence the modules take three times as long as the
arithmetic, and one call per layer a third of it.

The stack borrows packed matrices, biases and pages, and keeps them alive. It does not see later
changes of the model. One thread at a time may call it: the structures are reused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.core.kv_spec import PageLayout
from weft.native.attention_kernels import layout_pointers
from weft.native.kernels import TopK, embedding_rows, norm
from weft.native.library import Native, address, check, native
from weft.native.stack_weights import (
    AttentionWeights,
    LayerKV,
    LayerWeights,
    NormWeights,
    PositionRows,
    RotaryTable,
    StackWeights,
    fields_of,
)

SINGLE_THREAD_WORK = 2**18
"""Multiply-adds of a layer that one thread finishes before a second one has started."""
CACHED_KV_BYTES = 7 << 18
"""Bytes of keys and values that stay in a core's cache from one decode step to the next."""
LIGHT_MODEL_BYTES = 16 << 20
"""Bytes of weights that stay in the last-level cache: reading them for few sequences costs
little."""
KEPT_SCRATCH_BYTES = 16 << 20
"""Memory between the parts of a layer is kept for the next call up to this size."""


class LayerGroup:
    """Layers with the same mask, rotation and page layouts, which share a WeftLayerPass."""

    def __init__(self, library: Native, layer: LayerWeights, kv: Sequence[LayerKV]) -> None:
        attention, cross = layer.attention, layer.cross
        self.rotary, self.group = attention.rotary, kv[attention.kv_index].group
        self.cross_group = None if cross is None else kv[cross.kv_index].group
        self.struct = library.new("WeftLayerPass*")
        describe_pages(self.struct.self, attention, kv[attention.kv_index])
        if cross is not None:
            describe_pages(self.struct.cross, cross, kv[cross.kv_index])

    @staticmethod
    def key(layer: LayerWeights, kv: Sequence[LayerKV]) -> tuple[object, ...]:
        attentions = [a for a in (layer.attention, layer.cross) if a is not None]
        masks = (
            (a.is_causal, a.window, a.scale, a.softcap, kv[a.kv_index].group) for a in attentions
        )
        return layer.attention.rotary, *masks

    def rotate(self, tables: Sequence[RotaryTable | None], positions: int) -> None:
        if self.rotary is not None:
            table = tables[self.rotary]
            assert table is not None, f"no cos and sin for rotation {self.rotary}"
            self.struct.rotary = table.fields(positions)


def describe_pages(call: Any, attention: AttentionWeights, kv: LayerKV) -> None:
    """The fields of a WeftPagedAttention that do not change from call to call."""
    call.k_stride, call.v_stride = kv.k_PRKC.stride()[:3], kv.v_PRKC.stride()[:3]
    (_, call.page_rows, call.key_heads, call.head_size) = kv.k_PRKC.shape
    call.value_size, call.heads = kv.v_PRKC.shape[3], attention.num_heads
    call.is_causal, call.window = attention.is_causal, attention.window or 0
    call.scale, call.softcap = attention.scale, attention.softcap or 0.0


class PlacedLayers:
    """Layers and the pages of their keys and values."""

    def __init__(
        self,
        library: Native,
        layers: Sequence[LayerWeights],
        structs: Sequence[Any],
        kv: Sequence[LayerKV],
    ) -> None:
        self.array = library.new("WeftPlacedLayer[]", len(layers))
        numbers: dict[tuple[object, ...], int] = {}
        self.groups: list[LayerGroup] = []
        for at, layer, struct in zip(self.array, layers, structs, strict=True):
            key = LayerGroup.key(layer, kv)
            if key not in numbers:
                numbers[key] = len(self.groups)
                self.groups.append(LayerGroup(library, layer, kv))
            at.layer, at.pass_index = struct, numbers[key]
            pages = kv[layer.attention.kv_index]
            at.k, at.v = pages.k_PRKC.data_ptr(), pages.v_PRKC.data_ptr()
            if layer.cross is not None:
                pages = kv[layer.cross.kv_index]
                at.cross_k, at.cross_v = pages.k_PRKC.data_ptr(), pages.v_PRKC.data_ptr()
        self.passes = library.new("WeftLayerPass*[]", [group.struct for group in self.groups])


class CompiledStack:
    """A stack as the library reads it."""

    def __init__(self, weights: StackWeights, kv: Sequence[LayerKV] | None = None) -> None:
        """`kv`: pages by index of the KVSpecs, fixed; None: each `forward` passes them."""
        library = native()
        assert library is not None, "a compiled stack needs the native library"
        self.library, self.weights, self.kv = library, weights, kv
        self.structs = [library.new("WeftLayer*", layer.fields()) for layer in weights.layers]
        final_norm = weights.final_norm
        self.final_norm = final_norm and library.new("WeftNorm*", final_norm.fields())
        self.scratch_size = max(2 * layer.width + layer.inner_size for layer in weights.layers)
        self.layer_work = max(layer.width * layer.inner_size for layer in weights.layers)
        self.scratch = torch.empty(0, dtype=torch.float32, device="cpu")
        self.placed = None if kv is None else self.place(kv)
        self.decode_struct = None if self.placed is None else self.describe_decode(self.placed)

    def forward(
        self,
        x_ND: Tensor,
        positions_N: Tensor,
        layouts: Mapping[int, PageLayout],
        slots: Mapping[int, Tensor],
        position_rows: PositionRows,
        kv: LayerKV | None = None,
        layers: range | None = None,
    ) -> Tensor:
        """Embedded tokens through all layers and the final norm, [N, D]. Writes their keys and
        values into slots_N of each group. `kv`: scratch pages that all layers share. `layers`: only
        these; x_ND is the input of the first one, and the final norm follows the last layer."""
        placed = self.placed
        if kv is not None:
            placed = self.place([kv] * len(self.structs))
        assert placed is not None, "this stack has no pages of its own: pass kv"
        x_ND, positions_N = x_ND.contiguous(), positions_N.contiguous()
        num_tokens, threads = len(x_ND), torch.get_num_threads()
        scratch = self.scratch_for(num_tokens)
        for group in placed.groups:
            self.prepare(group, num_tokens, threads, scratch)
            group.struct.slots = slots[group.group].data_ptr()
            group.rotate(position_rows.rotary, positions_N.data_ptr())
            point_sorted(group.struct.self, layouts[group.group], threads)
            if group.cross_group is not None:
                point_sorted(group.struct.cross, layouts[group.cross_group], threads)
        y_ND, other_ND = torch.empty_like(x_ND), torch.empty_like(x_ND)
        addresses = (x.data_ptr() for x in (x_ND, y_ND, other_ND))
        layers = layers or range(len(self.structs))
        part = (placed.array + layers.start, len(layers), placed.passes)
        check(self.library.lib.weft_layers(*part, *addresses))
        if self.final_norm is not None and layers.stop == len(self.structs):
            self.normalize_in_place(self.final_norm, y_ND, threads)
        return y_ND

    def normalize_in_place(self, norm: Any, x_ND: Tensor, threads: int) -> None:
        """The final norm, without the checks of `kernels.norm`: between two passes over all
        weights, whatever Python reads is in no cache."""
        data, (num_tokens, width) = x_ND.data_ptr(), x_ND.shape
        check(self.library.lib.weft_norm(norm, data, data, num_tokens, width, width, threads))

    def embed(
        self, ids_N: Tensor, positions_N: Tensor, position_rows: PositionRows
    ) -> Tensor | None:
        """The input of the first layer, x_ND; None where the embedding or its position rows are not
        known here, and the module has to compute it. The bits are those of the module."""
        embedding = self.weights.embedding
        if embedding is None or not position_rows.can_embed:
            return None
        x_ND = embedding_rows(embedding.words, ids_N)
        if embedding.scale != 1.0:
            x_ND = x_ND * embedding.scale
        if position_rows.added_MD is not None:
            x_ND = x_ND + position_rows.added_MD[positions_N]
        return x_ND if embedding.norm is None else normalize(x_ND, embedding.norm)

    def place(self, kv: Sequence[LayerKV]) -> PlacedLayers:
        return PlacedLayers(self.library, self.weights.layers, self.structs, kv)

    @property
    def can_decode(self) -> bool:
        """Whether `top_k` and `greedy` can be called."""
        return self.decode_struct is not None

    @property
    def is_light(self) -> bool:
        """Whether `greedy` is faster than a call per step. A heavy model needs all sequences in
        each step, and its steps are long: a loop that can be stopped after each one is better."""
        head = self.weights.head
        assert head is not None, "a stack without a head does not decode"
        matrix = head.linear.matrix
        numbers = len(self.structs) * self.layer_work + matrix.outputs * matrix.inputs
        return 4 * numbers <= LIGHT_MODEL_BYTES

    def top_k(
        self,
        ids_B: Tensor,
        layouts: Mapping[int, PageLayout],
        k: int,
        banned: Sequence[int],
        position_rows: PositionRows,
    ) -> TopK:
        """One decode step: the last token of each sequence -> the k largest next-token logits that
        are not banned. A layout's starts are the positions of the tokens."""
        assert self.weights.head is not None, "a stack without a head does not decode"
        num, k = len(ids_B), min(k, self.weights.head.linear.matrix.outputs)
        values_BK = torch.empty(num, k, dtype=torch.float32, device="cpu")
        ids_BK = torch.empty(num, k, dtype=torch.long, device="cpu")
        sums_B = torch.empty(num, dtype=torch.float64, device="cpu")
        scratch = self.prepare_decode(num, layouts, position_rows)
        banned_ids = np.array(banned, dtype=np.int64)
        results = (values_BK.data_ptr(), ids_BK.data_ptr(), sums_B.data_ptr())
        fields = self.decode_fields(ids_B.data_ptr(), banned_ids, k, results)
        step = self.library.new("WeftDecodeStep*", fields)
        done = check(self.library.lib.weft_decode_step(self.decode_struct, step))
        del scratch
        assert done == num, f"token {ids_B[done]} has no row in the word table"
        return TopK(values_BK, ids_BK, sums_B)

    def greedy(
        self,
        ids_B: NDArray[np.int64],
        layouts: Mapping[int, PageLayout],
        ends_B: NDArray[np.int64],
        limits_B: NDArray[np.int64],
        scores_B: NDArray[np.float64],
        banned: Sequence[int],
        position_rows: PositionRows,
    ) -> NDArray[np.int64]:
        """Greedy search until each sequence has its end token (below 0: none) or its limit of
        steps: tokens_BT, -1 after the last one. The log-probabilities are added to `scores_B`."""
        num = len(ids_B)
        tokens_BT = np.full((num, int(limits_B.max())), -1, dtype=np.int64)
        scratch = self.prepare_decode(num, layouts, position_rows)
        banned_ids = np.array(banned, dtype=np.int64)
        arrays = (ids_B, ends_B, limits_B, scores_B, tokens_BT)
        fields = (
            *(self.decode_fields(0, banned_ids, 1, (0, 0, 0)), num),
            *(self.greedy_batch(num, layouts), tokens_BT.shape[1]),
            *(array.ctypes.data for array in arrays),
        )
        call = self.library.new("WeftGreedy*", fields)
        done = check(self.library.lib.weft_greedy(self.decode_struct, call))
        del scratch
        assert done == num, "a token has no row in the word table"
        return tokens_BT

    def describe_decode(self, placed: PlacedLayers) -> Any:
        """The WeftDecoder of `top_k` and `greedy`; None without embedding or head."""
        embedding, head, last = self.weights.embedding, self.weights.head, self.weights.final_norm
        if embedding is None or head is None:
            return None
        words, has_norm = embedding.words, embedding.norm is not None
        sizes = (has_norm, words.inputs, embedding.scale)
        fields = (
            (words.struct, 0, fields_of(embedding.norm), *sizes),
            *(placed.array, len(self.structs)),
            *(fields_of(last), last is not None),
            *(head.linear.fields(), head.scale),
        )
        return self.library.new("WeftDecoder*", fields)

    def prepare_decode(
        self, num: int, layouts: Mapping[int, PageLayout], position_rows: PositionRows
    ) -> Tensor:
        """Set what changes from call to call; the scratch memory, which must outlive the call."""
        struct, placed = self.decode_struct, self.placed
        assert struct is not None and placed is not None, "this stack cannot decode"
        added_MD, threads = position_rows.added_MD, torch.get_num_threads()
        struct.embedding.added = address(added_MD)
        scratch = self.scratch_for(num)
        for group in placed.groups:
            self.prepare(group, num, threads, scratch)
            group.rotate(position_rows.rotary, 0)
            point(group.struct.self, layouts[group.group], threads)
            if group.cross_group is not None:
                point(group.struct.cross, layouts[group.cross_group], threads)
        return scratch

    def prepare(self, group: LayerGroup, num_tokens: int, threads: int, scratch: Tensor) -> None:
        struct = group.struct
        struct.scratch, struct.rows = scratch.data_ptr(), num_tokens
        # one thread where the others would start too late to help
        is_small = num_tokens * self.layer_work < SINGLE_THREAD_WORK
        struct.threads = 1 if is_small else threads

    def decode_fields(
        self, ids: int, banned: NDArray[np.int64], k: int, results: tuple[int, int, int]
    ) -> tuple[object, ...]:
        """WeftDecodeStep. `results`: addresses of the values, the ids and the log-sum-exp."""
        assert self.placed is not None, "this stack cannot decode"
        passes, threads = self.placed.passes, torch.get_num_threads()
        sizes = (len(banned), k)
        return passes, len(passes), ids, banned.ctypes.data, *sizes, *results, threads

    def greedy_batch(self, num: int, layouts: Mapping[int, PageLayout]) -> int:
        """Sequences that run at a time, so that their keys and values stay in the caches."""
        assert self.placed is not None, "this stack cannot decode"
        first = self.placed.groups[0]
        groups = [group for group in (first.group, first.cross_group) if group is not None]
        num_keys = sum(float(layouts[group].lengths_B.float().mean()) for group in groups)
        call = first.struct.self
        key_bytes = 4 * len(self.structs) * call.key_heads * (call.head_size + call.value_size)
        per_thread = max(1, int(CACHED_KV_BYTES / (num_keys * key_bytes)))
        return min(num, torch.get_num_threads() * per_thread)

    def scratch_for(self, num_tokens: int) -> Tensor:
        """Memory between the parts of a layer."""
        size = max(1, num_tokens * self.scratch_size)
        if len(self.scratch) >= size:
            return self.scratch
        scratch = torch.empty(size, dtype=torch.float32, device="cpu")
        if 4 * size <= KEPT_SCRATCH_BYTES:
            self.scratch = scratch
        return scratch


def normalize(x_ND: Tensor, weights: NormWeights) -> Tensor:
    settings = {"kind": weights.kind, "eps": weights.eps, "unit_offset": weights.unit_offset}
    return norm(x_ND, weights.weight_D, weights.bias_D, **settings)  # type: ignore[arg-type]


def point_sorted(call: Any, layout: PageLayout, threads: int) -> None:
    """Let attention read a layout, sequences with shared pages next to each other."""
    (call.offsets, call.starts, call.lengths, call.table, call.order) = layout_pointers(layout)
    call.sequences, call.table_stride = layout.table_BP.shape
    call.threads = threads


def point(call: Any, layout: PageLayout, threads: int) -> None:
    """Let a decode call read a layout; the library sorts the sequences."""
    parts = (layout.offsets, layout.starts_B, layout.lengths_B, layout.table_BP)
    assert all(part.dtype == torch.int32 and part.is_contiguous() for part in parts), layout
    call.offsets, call.starts, call.lengths, call.table = (part.data_ptr() for part in parts)
    call.sequences, call.table_stride = layout.table_BP.shape
    call.threads = threads
