"""Rows of logits -> the logarithm of the sum of their exps, and their few best numbers.

Compiled where there is a compiler, in a fifth of the time that log_softmax and topk take for the
4,000 words of a small vocabulary; from a packed product even without the logits, a block of which
at a time is made and met in the processor's caches. What a row gives does not depend on the rows
beside it, nor on which of the two ways it goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_int64

import torch
from torch import Tensor

from weft.native.library import Native, native
from weft.native.packed import PackedWeight


def log_sums(logits_NV: Tensor) -> Tensor:
    """log of the sum of exp(logits) of each row, sums_N in float64 on the CPU; within 1e-6."""
    library, (N, V) = library_for(logits_NV), logits_NV.shape
    if library is None:
        return plain_log_sums(logits_NV)
    sums_N = torch.empty(N, dtype=torch.float64, device="cpu")
    stride, threads = logits_NV.stride(0), torch.get_num_threads()
    library.log_sums(logits_NV.data_ptr(), N, V, stride, sums_N.data_ptr(), threads)
    return sums_N


def best_of(logits_NV: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest numbers of each row, best_NK, and their ids_NK, largest first; of equal
    ones the first. Where a row has fewer that are above -inf, -inf stands with any ids."""
    count, library = min(count, logits_NV.shape[1]), library_for(logits_NV)
    if library is None:
        return plain_best(logits_NV, count)
    N, V = logits_NV.shape
    best_NK = torch.empty(N, count, dtype=torch.float32, device="cpu")
    ids_NK = torch.empty(N, count, dtype=torch.long, device="cpu")
    results = (best_NK.data_ptr(), ids_NK.data_ptr(), torch.get_num_threads())
    library.best(logits_NV.data_ptr(), N, V, logits_NV.stride(0), count, *results)
    return best_NK, ids_NK


def best_of_product(
    x_ND: Tensor, weight: PackedWeight, bias_V: Tensor | None, count: int, banned: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """`best_of` and `log_sums` of x W^T + bias: best_NK, ids_NK and sums_N. Banned ids are never
    among the best, but count in the sums. By the library alone."""
    library, (N, _) = native(), x_ND.shape
    assert library is not None and weight.is_native, "the weight was packed for no library"
    x_ND, count = x_ND.contiguous(), min(count, weight.outputs)
    best_NK = torch.empty(N, count, dtype=torch.float32, device="cpu")
    ids_NK = torch.empty(N, count, dtype=torch.long, device="cpu")
    sums_N = torch.empty(N, dtype=torch.float64, device="cpu")
    library.head_best(
        *(weight.address, x_ND.data_ptr(), None if bias_V is None else bias_V.data_ptr()),
        *(N, x_ND.stride(0), (c_int64 * len(banned))(*banned), len(banned), count),
        *(best_NK.data_ptr(), ids_NK.data_ptr(), sums_N.data_ptr(), torch.get_num_threads()),
    )
    return best_NK, ids_NK, sums_N


def plain_best(logits_NV: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """By torch, whose topk takes any of equal numbers: rows that have some are sorted."""
    best_NK, ids_NK = logits_NV.topk(count, dim=-1)
    is_tied_N = (logits_NV >= best_NK[:, -1:]).sum(-1) > count
    is_tied_N |= (best_NK[:, 1:] == best_NK[:, :-1]).any(-1)
    if bool(is_tied_N.any()):
        order_NV = logits_NV[is_tied_N].sort(dim=-1, descending=True, stable=True).indices
        ids_NK[is_tied_N] = order_NV[:, :count]
    return best_NK, ids_NK


def plain_log_sums(logits_NV: Tensor) -> Tensor:
    """By torch, which cuts a single long row in two: with another row beside it, it does not."""
    rows_NV = logits_NV.cpu() if logits_NV.device.type == "mps" else logits_NV
    if len(rows_NV) == 1:
        rows_NV = torch.cat((rows_NV, rows_NV))
    return rows_NV.double().logsumexp(-1)[: len(logits_NV)].cpu()


def library_for(logits_NV: Tensor) -> Native | None:
    """The compiled functions, where they can read these rows."""
    is_float = logits_NV.dtype == torch.float32 and logits_NV.device.type == "cpu"
    return native() if is_float and logits_NV.stride(1) == 1 else None
