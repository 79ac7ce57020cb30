"""The compiled kernels as functions of tensors: tensors in, tensors out.

    linear, linear_part, linear_top_k     products with a PackedMatrix
    embedding_rows                        rows of a PackedMatrix
    norm, activation, dropout             element- and row-wise layers
    top_k, log_sum_exp                    over the vocabulary
    rdrop_loss_                           both losses and the KL divergence of R-Drop
    copy_rows                             rows of pages, for copy-on-write

Each function computes with torch where there is no library, or where the library cannot take its
tensors: other dtypes and devices, gradients. `rdrop_loss_` returns None there, because its torch
version belongs to training. Attention is in attention_kernels.py. Without gradients everything
here is batch-invariant: a row's bits depend neither on the other rows of the call nor on the
number of threads. Library and torch agree within rounding, not bit for bit.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from weft.core.registry import pick
from weft.native.library import Native, address, check, native
from weft.native.packed import PackedMatrix


def is_inference_float32(x: Tensor) -> bool:
    """Whether the compiled kernels can take x: float32 on the CPU, and gradients are off."""
    return x.dtype == torch.float32 and x.device.type == "cpu" and not torch.is_grad_enabled()


# Matrix products


TILE = 16
"""Rows of each product by torch, which rounds differently for other numbers of rows."""
ALIGNMENT = 64
"""Bytes; of the memory that torch allocates."""
MIN_PROBED_THREADS = 8
"""Numbers of threads, from 1 to this one or the number of processors, that products are tried
with."""
PROBED_SHIFTS = (0, 1, 6, 11)
"""Places to which the rows of these products are moved."""


def linear(
    x: Tensor, matrix: PackedMatrix, bias_O: Tensor | None = None, outputs: slice | None = None
) -> Tensor:
    """x W^T + bias, x [..., I] float32 -> [..., O], or a range of the outputs. Batch-invariant;
    within 2e-6 of the largest result of an exact product."""
    begin, end, _ = (outputs or slice(None)).indices(matrix.outputs)
    assert x.shape[-1] == matrix.inputs, f"{x.shape[-1]} inputs, the matrix has {matrix.inputs}"
    if matrix.is_native:
        return native_linear(x, matrix, bias_O, begin, end)
    # all outputs even if a few are wanted: another number of outputs rounds differently
    y_NO = tiled_linear(x.reshape(-1, matrix.inputs), matrix.data, bias_O)
    return y_NO[:, begin:end].reshape(*x.shape[:-1], end - begin)


def linear_part(x: Tensor, matrix: PackedMatrix, outputs: slice) -> Tensor:
    """As `linear`, for outputs that are always computed in the same range, as those of one expert
    or head are: without the library the other outputs are not computed."""
    if matrix.is_native:
        return linear(x, matrix, None, outputs)
    y_NO = tiled_linear(x.reshape(-1, matrix.inputs), matrix.data[outputs], None)
    return y_NO.reshape(*x.shape[:-1], -1)


def native_linear(
    x: Tensor, matrix: PackedMatrix, bias_O: Tensor | None, begin: int, end: int
) -> Tensor:
    """Outputs begin to end. Allocates the result only: a tensor costs as much as a small
    product."""
    library = native()
    assert library is not None, "the matrix was packed for a library that is not there"
    assert x.dtype == torch.float32, f"x is {x.dtype}, the packed product takes float32"
    inputs, width = matrix.inputs, end - begin
    if x.dim() != 2 or x.stride(1) != 1:
        x = x.contiguous()
    stride = x.stride(0) if x.dim() == 2 else inputs
    y = x.new_empty((*x.shape[:-1], width))
    addresses = (x.data_ptr(), address(bias_O), y.data_ptr())
    sizes = (x.numel() // inputs, stride, width, begin, end, torch.get_num_threads())
    check(library.lib.weft_linear(matrix.struct, *addresses, *sizes))
    return y


def tiled_linear(x_NI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    """By torch, in tiles of equal size; the last tile is padded with zeros."""
    rows = tile_rows(*weight_OI.shape, weight_OI.data_ptr() % ALIGNMENT // 4)
    tiles = F.pad(x_NI, (0, 0, 0, -x_NI.shape[0] % rows)).split(rows)
    # a copy of each tile: the routine may depend on the alignment and the strides of its input
    copies = [tile.clone(memory_format=torch.contiguous_format) for tile in tiles if len(tile)]
    results = [F.linear(tile, weight_OI, bias_O) for tile in copies]
    return torch.cat(results)[: x_NI.shape[0]] if results else x_NI.new_zeros(0, len(weight_OI))


@functools.cache
def tile_rows(outputs: int, inputs: int, offset: int) -> int:
    """16 if torch gives a row the same bits at each of 16 places in a product of this size with any
    number of threads; else 1: a product of one row does not depend on the threads. `offset`: of the
    weight from an aligned address, in numbers."""
    source = torch.Generator().manual_seed(0)
    x_NI = torch.randn(TILE, inputs, generator=source)
    weight_OI = torch.randn(offset + outputs * inputs, generator=source)[offset:]
    weight_OI = weight_OI.view(outputs, inputs)
    before = torch.get_num_threads()
    expected_NO, is_same = F.linear(x_NI, weight_OI), True
    try:
        for threads in range(1, max(MIN_PROBED_THREADS, os.cpu_count() or 1) + 1):
            torch.set_num_threads(threads)
            for shift in PROBED_SHIFTS:
                y_NO = F.linear(x_NI.roll(shift, 0), weight_OI)
                is_same &= bool((y_NO == expected_NO.roll(shift, 0)).all())
    finally:
        torch.set_num_threads(before)
    return TILE if is_same else 1


def embedding_rows(matrix: PackedMatrix, ids: Tensor) -> Tensor:
    """W_OI[ids], [..., I], read from the panels; an IndexError for an id that has no row."""
    if not matrix.is_native:
        check_ids(ids, matrix.outputs)
        return matrix.data[ids]
    library, ids = native(), ids.long().contiguous()
    assert library is not None, "the matrix was packed for a library that is not there"
    rows = torch.empty((*ids.shape, matrix.inputs), dtype=torch.float32, device="cpu")
    arguments = (matrix.struct, ids.data_ptr(), ids.numel(), rows.data_ptr())
    if check(library.lib.weft_embedding_rows(*arguments)) < ids.numel():
        check_ids(ids, matrix.outputs)
    return rows


def check_ids(ids: Tensor, num_rows: int) -> None:
    """Raise an IndexError for an id outside 0..num_rows - 1; torch counts negative ones from the
    end."""
    lowest, highest = (int(end) for end in ids.aminmax()) if ids.numel() else (0, 0)
    if lowest < 0 or highest >= num_rows:
        raise IndexError(
            f"ids are {lowest} to {highest}, the table has rows 0 to {num_rows - 1}. Use ids of "
            "the model's vocabulary."
        )


# Norms


def norm(
    x: Tensor,
    weight_D: Tensor,
    bias_D: Tensor | None,
    *,
    kind: Literal["layernorm", "rmsnorm"],
    eps: float,
    unit_offset: bool = False,
) -> Tensor:
    """layernorm or rmsnorm over the last dimension, statistics in float32 at least. `unit_offset`:
    the weight is stored minus 1. Compiled where no gradient is needed: torch's rmsnorm is a dozen
    small operations on a CPU."""
    library = native() if can_compile_norm(x, weight_D, bias_D) else None
    if library is None:
        return torch_norm(x, weight_D, bias_D, kind=kind, eps=eps, unit_offset=unit_offset)
    size = x.shape[-1]
    if x.stride(-1) != 1 or x.dim() != 2:
        x = x.contiguous()
    stride = x.stride(0) if x.dim() == 2 else size
    y = x.new_empty(x.shape)
    fields = norm_fields(weight_D, bias_D, kind=kind, eps=eps, unit_offset=unit_offset)
    struct = library.new("WeftNorm*", fields)
    sizes = (x.numel() // size, size, stride, torch.get_num_threads())
    check(library.lib.weft_norm(struct, x.data_ptr(), y.data_ptr(), *sizes))
    return y


def can_compile_norm(x: Tensor, weight_D: Tensor, bias_D: Tensor | None) -> bool:
    """Whether these are plain float32 numbers of one width: not traced, exported or vmapped, where
    torch has to see its own operations."""
    if torch.jit._trace.is_tracing() or torch.compiler.is_compiling():
        return False
    if not is_inference_float32(x) or x.shape[-1:] != weight_D.shape or x.numel() == 0:
        return False
    if torch._C._functorch.is_functorch_wrapped_tensor(x):
        return False
    return is_contiguous_float32(weight_D) and (bias_D is None or is_contiguous_float32(bias_D))


def is_contiguous_float32(x: Tensor) -> bool:
    return x.dtype == torch.float32 and x.device.type == "cpu" and x.is_contiguous()


def norm_fields(
    weight_D: Tensor, bias_D: Tensor | None, *, kind: str, eps: float, unit_offset: bool
) -> tuple[object, ...]:
    """The fields of a WeftNorm; valid while the tensors live."""
    is_centered = kind == "layernorm"
    return weight_D.data_ptr(), address(bias_D), is_centered, eps, float(unit_offset)


def torch_norm(
    x: Tensor, weight_D: Tensor, bias_D: Tensor | None, *, kind: str, eps: float, unit_offset: bool
) -> Tensor:
    """By torch, in float32 or float64."""
    dtype = x.dtype if x.dtype in (torch.float32, torch.float64) else torch.float32
    weight_D = cast(weight_D, dtype)
    # the 1 is added in the wide dtype: bfloat16 has 8 bits for 1 + weight
    weight_D = weight_D + 1 if unit_offset else weight_D
    if kind == "rmsnorm":
        return cast(F.rms_norm(cast(x, dtype), weight_D.shape, weight_D, eps), x.dtype)
    bias_D = None if bias_D is None else cast(bias_D, dtype)
    return cast(F.layer_norm(cast(x, dtype), weight_D.shape, weight_D, bias_D, eps), x.dtype)


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x.to(dtype), which costs a call even where nothing changes."""
    return x if x.dtype == dtype else x.to(dtype)


# Activations


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "gelu": F.gelu,
    "relu": F.relu,
}
ACTIVATION_IDS = {"sigmoid": 0, "silu": 1, "gelu_tanh": 2, "gelu": 3, "relu": 4}
"""The library's numbers for them."""
VECTOR_MULTIPLE = 64
"""torch treats the last elements of an array, which fill no vector, by another routine that rounds
differently. Rows of a multiple of this size have no such elements."""
SINGLE_THREAD_SIZE = 2**14
"""Elements up to which torch uses one thread (GELU; 2**15 for most functions): each thread would
have last elements of its own."""


def activation(kind: str, x: Tensor, up: Tensor | None = None) -> Tensor:
    """act(x), times `up` where it is passed: [..., F]. With gradients and for other dtypes torch's
    own function, whose rows are not batch-invariant."""
    function = ACTIVATIONS.get(kind) or pick(ACTIVATIONS, kind, "activation")  # raises
    tensors = (x,) if up is None else (x, up)
    is_float32 = all(t.dtype == torch.float32 and t.device.type == "cpu" for t in tensors)
    needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    if not is_float32 or needs_grad or x.numel() == 0:
        y = function(x)
        return y if up is None else y * up
    library = native()
    if library is None:
        y = padded_activation(function, x)
        return y if up is None else y * up
    return native_activation(library, ACTIVATION_IDS[kind], x, up)


def native_activation(library: Native, kind: int, x: Tensor, up: Tensor | None) -> Tensor:
    """x and up may be the two halves of one tensor."""
    is_strided = x.dim() == 2 and x.stride(1) == 1 and (up is None or up.stride() == x.stride())
    if not is_strided:
        x, up = x.contiguous(), None if up is None else up.contiguous()
    size = x.shape[-1]
    y = x.new_empty(x.shape)
    stride = x.stride(0) if is_strided else size
    addresses = (x.data_ptr(), address(up), y.data_ptr())
    sizes = (x.numel() // size, size, stride, torch.get_num_threads())
    check(library.lib.weft_activation(kind, *addresses, *sizes))
    return y


def padded_activation(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """By torch, on rows padded to full vectors, so few at a time that one thread computes them."""
    size = x.shape[-1]
    wide = F.pad(x.reshape(-1, size), (0, -size % VECTOR_MULTIPLE))
    parts = [function(part) for part in wide.split(max(1, SINGLE_THREAD_SIZE // wide.shape[1]))]
    return torch.cat(parts)[:, :size].reshape(x.shape)


# Dropout


LOWEST_INT64 = -(2**63)


def dropout(x: Tensor, p: float) -> Tensor:
    """x * keep / P(keep), keep = random byte >= 256 p, drawn from torch's default generator. The
    compiled kernel hashes the bytes from one drawn seed and the element's index; without it one
    64-bit draw decides eight elements. Other devices use torch's own dropout."""
    if x.device.type != "cpu":
        return F.dropout(x, p)
    is_compiled = x.dtype == torch.float32 and native() is not None
    y: Tensor = (HashDropout if is_compiled else ByteDropout).apply(x, p)
    return y


class HashDropout(torch.autograd.Function):
    """Keeps the seed alone for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        seed = int(torch.empty((), dtype=torch.int64).random_(LOWEST_INT64, None))
        ctx.seed, ctx.threshold = seed, drop_threshold(p)
        return hash_dropout(x, ctx.seed, ctx.threshold)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return hash_dropout(grads[0], ctx.seed, ctx.threshold), None


def hash_dropout(x: Tensor, seed: int, threshold: int) -> Tensor:
    """Drop the elements whose hash of seed and index is below the threshold."""
    library = native()
    assert library is not None, "hashed dropout needs the compiled library"
    x = x.contiguous()
    y = torch.empty_like(x)
    scale, threads = 256 / (256 - threshold), torch.get_num_threads()
    sizes = (x.numel(), seed, threshold, scale, threads)
    check(library.lib.weft_dropout(x.data_ptr(), y.data_ptr(), *sizes))
    return y


class ByteDropout(torch.autograd.Function):
    """Keeps the mask, one byte an element, for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        threshold = drop_threshold(p)
        keep = random_bytes(x.numel()).view(x.shape) >= threshold
        ctx.scale = 256 / (256 - threshold)
        ctx.save_for_backward(keep)
        return masked_scale(x, keep, ctx.scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors
        return masked_scale(grads[0], keep, ctx.scale), None


def drop_threshold(p: float) -> int:
    """How many of the 256 values of a byte drop an element: p is rounded to 1/256."""
    return max(1, min(255, round(256 * p)))


def masked_scale(x: Tensor, keep: Tensor, scale: float) -> Tensor:
    """x * keep * scale in one pass over memory."""
    return torch.ops.aten.native_dropout_backward(x, keep, scale)


def random_bytes(count: int) -> Tensor:
    """`count` uniform bytes from torch's default generator."""
    words = torch.empty((count + 7) // 8, dtype=torch.int64).random_(LOWEST_INT64, None)
    return words.view(torch.uint8)[:count]


# Logits


class TopK(NamedTuple):
    """The largest logits of each row, without the logits themselves."""

    values_NK: Tensor
    ids_NK: Tensor
    log_sum_exp_N: Tensor
    """Over all logits of the row, float64."""


def log_sum_exp(logits_NV: Tensor) -> Tensor:
    """log sum exp of each row, [N] in float64 on the CPU; within 1e-6."""
    library, (N, V) = library_for_rows(logits_NV), logits_NV.shape
    if library is None:
        return torch_log_sum_exp(logits_NV)
    sums_N = torch.empty(N, dtype=torch.float64, device="cpu")
    stride, threads = logits_NV.stride(0), torch.get_num_threads()
    arguments = (logits_NV.data_ptr(), N, V, stride, sums_N.data_ptr(), threads)
    check(library.lib.weft_log_sum_exp(*arguments))
    return sums_N


def top_k(logits_NV: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest numbers of each row, values_NK, and their ids_NK, largest first; of equal ones
    the lowest id. Where fewer than k are above -inf, the rest is -inf with any ids."""
    k, library = min(k, logits_NV.shape[1]), library_for_rows(logits_NV)
    if library is None:
        return torch_top_k(logits_NV, k)
    N, V = logits_NV.shape
    values_NK = torch.empty(N, k, dtype=torch.float32, device="cpu")
    ids_NK = torch.empty(N, k, dtype=torch.long, device="cpu")
    results = (values_NK.data_ptr(), ids_NK.data_ptr(), torch.get_num_threads())
    check(library.lib.weft_top_k(logits_NV.data_ptr(), N, V, logits_NV.stride(0), k, *results))
    return values_NK, ids_NK


def linear_top_k(
    x_ND: Tensor, matrix: PackedMatrix, bias_V: Tensor | None, k: int, banned: Sequence[int]
) -> TopK:
    """`top_k` and `log_sum_exp` of x W^T + bias, a block of the logits at a time. Banned ids are
    never among the top k, but count in the sums. Needs a matrix packed for the library."""
    library, (N, _) = native(), x_ND.shape
    assert library is not None and matrix.is_native, "the matrix was packed for no library"
    x_ND, k = x_ND.contiguous(), min(k, matrix.outputs)
    values_NK = torch.empty(N, k, dtype=torch.float32, device="cpu")
    ids_NK = torch.empty(N, k, dtype=torch.long, device="cpu")
    sums_N = torch.empty(N, dtype=torch.float64, device="cpu")
    banned_ids = np.array(banned, dtype=np.int64)
    code = library.lib.weft_linear_top_k(
        *(matrix.struct, x_ND.data_ptr(), address(bias_V), N, x_ND.stride(0)),
        *(banned_ids.ctypes.data, len(banned_ids), k),
        *(values_NK.data_ptr(), ids_NK.data_ptr(), sums_N.data_ptr(), torch.get_num_threads()),
    )
    check(code)
    return TopK(values_NK, ids_NK, sums_N)


def torch_top_k(logits_NV: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """torch.topk returns any of equal numbers: rows with ties are sorted instead."""
    values_NK, ids_NK = logits_NV.topk(k, dim=-1)
    is_tied_N = (logits_NV >= values_NK[:, -1:]).sum(-1) > k
    is_tied_N |= (values_NK[:, 1:] == values_NK[:, :-1]).any(-1)
    if bool(is_tied_N.any()):
        order_NV = logits_NV[is_tied_N].sort(dim=-1, descending=True, stable=True).indices
        ids_NK[is_tied_N] = order_NV[:, :k]
    return values_NK, ids_NK


def torch_log_sum_exp(logits_NV: Tensor) -> Tensor:
    """torch splits a single long row between threads, and two rows not."""
    rows_NV = logits_NV.cpu() if logits_NV.device.type == "mps" else logits_NV
    if len(rows_NV) == 1:
        rows_NV = torch.cat((rows_NV, rows_NV))
    return rows_NV.double().logsumexp(-1)[: len(logits_NV)].cpu()


def library_for_rows(logits_NV: Tensor) -> Native | None:
    """The library, where it can read these rows."""
    is_float32 = logits_NV.dtype == torch.float32 and logits_NV.device.type == "cpu"
    return native() if is_float32 and logits_NV.stride(1) == 1 else None


# R-Drop


def rdrop_loss_(
    logits_NV: Tensor, others_NV: Tensor, targets_N: Tensor, smoothing: float, kl_weight: float
) -> Tensor | None:
    """Each token's loss, [N] in float64: the label-smoothed cross-entropy of both passes plus
    kl_weight * (KL(p || q) + KL(q || p)) (Liang 2021). The gradients overwrite both logits. None,
    and nothing is changed, where the library cannot do it."""
    library, pair = native(), (logits_NV, others_NV)
    is_readable = all(is_inference_float32(one) and one.is_contiguous() for one in pair)
    if library is None or not is_readable or not are_ids(targets_N, logits_NV.shape[1]):
        return None
    losses_N = torch.empty(len(targets_N), dtype=torch.float64, device="cpu")
    targets_N = targets_N.long().contiguous()
    addresses = (one.data_ptr() for one in (logits_NV, others_NV, targets_N, losses_N))
    sizes = (*logits_NV.shape, smoothing, kl_weight, torch.get_num_threads())
    check(library.lib.weft_rdrop_loss(*addresses, *sizes))
    return losses_N


def are_ids(targets_N: Tensor, vocab_size: int) -> bool:
    """Whether all targets are ids of the vocabulary; torch's version reports those that are not."""
    if targets_N.numel() == 0:
        return True
    lowest, highest = targets_N.aminmax()
    return bool(lowest >= 0) and bool(highest < vocab_size)


# Pages


def copy_rows(pages: Tensor, copies_N3: NDArray[np.int64]) -> None:
    """Copy the first rows of pages to others, in order: each row of `copies_N3` is (source page,
    target page, number of rows). pages: [P, R, ...]. torch copies whole pages."""
    library = native()
    if library is None or pages.device.type != "cpu":
        source_N, target_N = torch.from_numpy(copies_N3[:, :2].T.copy()).to(pages.device)
        # as rows of whole pages: three times as fast as a list of indices
        flat = pages.flatten(1)
        flat.index_copy_(0, target_N, flat.index_select(0, source_N))
        return
    size = pages.element_size()
    page, row = pages.stride(0) * size, pages.stride(1) * size
    arguments = (pages.data_ptr(), page, row, copies_N3.ctypes.data, len(copies_N3))
    check(library.lib.weft_copy_rows(*arguments))
