"""Rows of logits -> the logarithm of the sum of their exps, and their few best numbers.

Compiled where there is a compiler, in a fifth of the time that log_softmax and topk take for the
4,000 words of a small vocabulary. What a row gives does not depend on the rows beside it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft.nn.native.library import Native, native


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
    """The `count` largest numbers of each row, best_NK, and their ids_NK, largest first. Where a
    row has fewer that are above -inf, -inf stands with any ids."""
    count, library = min(count, logits_NV.shape[1]), library_for(logits_NV)
    if library is None:
        best_NK, ids_NK = logits_NV.topk(count, dim=-1)
        return best_NK, ids_NK
    N, V = logits_NV.shape
    best_NK = torch.empty(N, count, dtype=torch.float32, device="cpu")
    ids_NK = torch.empty(N, count, dtype=torch.long, device="cpu")
    results = (best_NK.data_ptr(), ids_NK.data_ptr(), torch.get_num_threads())
    library.best(logits_NV.data_ptr(), N, V, logits_NV.stride(0), count, *results)
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
