"""Dropout: x -> x with a share of its numbers set to 0 and the rest enlarged (Srivastava 2014).

    y = x * keep / P(keep),   keep = random byte >= 256 p

Differs from torch's on a CPU, where drawing one random number per element takes longer than the
matrix product beside it: here one 64-bit draw decides eight elements, so p is rounded to 1/256, and
the enlargement follows the rounded p. Elsewhere it is torch's own.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LOWEST = -(2**63)


class Dropout(nn.Module):
    """Drops in training, does nothing else. Draws from torch's default generator."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        return ByteDropout.apply(x, self.p) if x.device.type == "cpu" else F.dropout(x, self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class ByteDropout(torch.autograd.Function):
    """Keeps the mask, one byte an element, for the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        dropped = max(1, min(255, round(256 * p)))
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
