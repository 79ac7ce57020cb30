"""Dropout: x -> x with a share of its numbers set to 0 and the rest enlarged (Srivastava 2014).

    y = x * keep / P(keep),   keep = random byte >= 256 p

Differs from torch's on a CPU, where drawing one random number per element takes longer than the
matrix product beside it: here a byte decides, so p is rounded to 1/256, and the enlargement follows
the rounded p. The compiled kernel hashes the bytes from one drawn seed and the element's place, on
the way back again; without it one 64-bit draw decides eight elements. Elsewhere it is torch's own.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.native.library import native

LOWEST = -(2**63)


class Dropout(nn.Module):
    """Drops in training, does nothing else. Draws from torch's default generator."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.p)
        is_plain = x.dtype == torch.float32 and native() is not None
        return (HashDropout if is_plain else ByteDropout).apply(x, self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class HashDropout(torch.autograd.Function):
    """Keeps the seed alone for the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        seed = int(torch.empty((), dtype=torch.int64).random_(LOWEST, None))
        ctx.rule = (seed, dropped_bytes(p))
        return hashed(x, *ctx.rule)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return hashed(grads[0], *ctx.rule), None


def hashed(x: Tensor, seed: int, dropped: int) -> Tensor:
    """x with the numbers dropped that the seed chooses, by their places."""
    library = native()
    assert library is not None, "there is no library to drop with"
    x = x.contiguous()
    y = torch.empty_like(x)
    scale, threads = 256 / (256 - dropped), torch.get_num_threads()
    library.dropout(x.data_ptr(), y.data_ptr(), x.numel(), seed, dropped, scale, threads)
    return y


def dropped_bytes(p: float) -> int:
    """How many of 256 bytes mean that an element is dropped."""
    return max(1, min(255, round(256 * p)))


class ByteDropout(torch.autograd.Function):
    """Keeps the mask, one byte an element, for the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        dropped = dropped_bytes(p)
        keep = random_bytes(x.numel()).view(x.shape) >= dropped
        ctx.scale = 256 / (256 - dropped)
        ctx.save_for_backward(keep)
        return scaled(x, keep, ctx.scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors
        return scaled(grads[0], keep, ctx.scale), None


def scaled(x: Tensor, keep: Tensor, scale: float) -> Tensor:
    """x * keep * scale in one walk over memory."""
    return torch.ops.aten.native_dropout_backward(x, keep, scale)


def random_bytes(count: int) -> Tensor:
    """`count` even bytes from torch's default generator."""
    words = torch.empty((count + 7) // 8, dtype=torch.int64).random_(LOWEST, None)
    return words.view(torch.uint8)[:count]
