"""Dropout: x -> x with a fraction p of its elements zeroed and the others scaled (Srivastava 2014).

    y = x * keep / P(keep),   keep = random byte >= 256 p

Differs from torch's on a CPU, where one random number per element takes longer than the neighboring
matrix product: here one byte per element is drawn, so p is rounded to a multiple of 1/256, and the
scale follows the rounded p (native/kernels.py). On other devices it is torch's own.
"""

from __future__ import annotations

from torch import Tensor, nn

from weft.native.kernels import dropout


class Dropout(nn.Module):
    """Drops in training, the identity otherwise. Draws from torch's default generator."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p) if self.training and self.p else x

    def extra_repr(self) -> str:
        return f"p={self.p}"
