"""The up-projection of latent rows, moved to the other side: queries meet W_UK, sums meet W_UV.

    latent_h = q_h W_UK_h^T      J numbers of a query become A, those of the rows
    value_h  = sum_h W_UV_h      A numbers of a weighted sum of rows become U

One product a head. Where the layer is packed these are packed too, so that a query's result does
not depend on how many others share its pass (nn/linear.py).
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft.nn.linear import Linear, is_plain, linear
from weft.nn.native.packed import PackedWeight, pack


class AbsorbedUp:
    """Both products of one layer, from the weight of its up-projection, [H * (J + U), A]."""

    def __init__(self, kv_up: Linear, num_heads: int, nope_size: int) -> None:
        self.kv_up, self.num_heads, self.nope_size = kv_up, num_heads, nope_size
        self.packed_for: PackedWeight | None = None
        self.packed: list[tuple[PackedWeight, PackedWeight]] = []

    def queries(self, nope_BTHJ: Tensor) -> Tensor:
        """nope_BTHJ -> latent_BTHA."""
        if self.is_packed(nope_BTHJ):
            return each_head(nope_BTHJ, [key for key, _ in self.packed])
        return torch.einsum("bthj,hja->btha", nope_BTHJ, self.parts()[0])

    def values(self, out_BTHA: Tensor) -> Tensor:
        """out_BTHA -> out_BTHU."""
        if self.is_packed(out_BTHA):
            return each_head(out_BTHA, [value for _, value in self.packed])
        return torch.einsum("btha,hua->bthu", out_BTHA, self.parts()[1])

    def parts(self) -> tuple[Tensor, Tensor]:
        """up_HJA for keys and up_HUA for values."""
        up_HCA = self.kv_up.weight.unflatten(0, (self.num_heads, -1))
        return up_HCA[:, : self.nope_size], up_HCA[:, self.nope_size :]

    def is_packed(self, x: Tensor) -> bool:
        """Whether packed products are to be used; they are made when the layer was packed anew."""
        current = self.kv_up.packed
        if current is None or not is_plain(x):
            return False
        if current is not self.packed_for:
            pairs = zip(*self.parts(), strict=True)
            self.packed = [(pack(key.T.contiguous()), pack(value)) for key, value in pairs]
            self.packed_for = current
        return True


def each_head(x_BTHC: Tensor, weights: list[PackedWeight]) -> Tensor:
    """The product of each head with a weight of its own."""
    heads = zip(x_BTHC.unbind(2), weights, strict=True)
    return torch.stack([linear(x, weight) for x, weight in heads], dim=2)
