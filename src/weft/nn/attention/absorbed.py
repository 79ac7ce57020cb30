"""The up-projection of latent rows, moved to the other side: queries meet W_UK, sums meet W_UV.

    latent_h = q_h W_UK_h^T      J numbers of a query become A, those of the rows
    value_h  = sum_h W_UV_h      A numbers of a weighted sum of rows become U

One product a head. Where the layer is packed, so that a query's result does not depend on how many
others share its pass (native/kernels.py), values are some outputs of the packed weight; W_UK meets
queries from the other side and is packed once more.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft.native.kernels import is_inference_float32, linear, linear_part
from weft.native.packed import PackedMatrix, pack
from weft.nn.linear import Linear


class AbsorbedUp:
    """Both products of one layer, from the weight of its up-projection, [H * (J + U), A]."""

    def __init__(self, kv_up: Linear, num_heads: int, nope_size: int) -> None:
        self.kv_up, self.num_heads, self.nope_size = kv_up, num_heads, nope_size
        self.packed_for: PackedMatrix | None = None
        self.keys: list[PackedMatrix] = []

    def queries(self, nope_BTHJ: Tensor) -> Tensor:
        """nope_BTHJ -> latent_BTHA."""
        if self.packed(nope_BTHJ) is not None:
            heads = zip(nope_BTHJ.unbind(2), self.keys, strict=True)
            return torch.stack([linear(x_BTJ, key) for x_BTJ, key in heads], dim=2)
        return torch.einsum("bthj,hja->btha", nope_BTHJ, self.parts()[0])

    def values(self, out_BTHA: Tensor) -> Tensor:
        """out_BTHA -> out_BTHU."""
        packed = self.packed(out_BTHA)
        if packed is not None:
            size = packed.outputs // self.num_heads
            rows = [slice(h * size + self.nope_size, (h + 1) * size) for h in range(self.num_heads)]
            heads = zip(out_BTHA.unbind(2), rows, strict=True)
            return torch.stack([linear_part(x_BTA, packed, row) for x_BTA, row in heads], dim=2)
        return torch.einsum("btha,hua->bthu", out_BTHA, self.parts()[1])

    def parts(self) -> tuple[Tensor, Tensor]:
        """up_HJA for keys and up_HUA for values."""
        up_HCA = self.kv_up.whole().unflatten(0, (self.num_heads, -1))
        return up_HCA[:, : self.nope_size], up_HCA[:, self.nope_size :]

    def packed(self, x: Tensor) -> PackedMatrix | None:
        """The packed weight where it is to be used; keys are made when the layer is packed anew."""
        current, is_used = self.kv_up.current(), is_inference_float32(x)
        if current is not self.packed_for and (is_used or current is None):
            keys = () if current is None else self.parts()[0]
            self.keys = [pack(key_JA.T.contiguous()) for key_JA in keys]
            self.packed_for = current
        return current if is_used else None
