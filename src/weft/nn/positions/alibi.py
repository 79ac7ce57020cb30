"""ALiBi: -> bias_BHTS, a fixed penalty that grows linearly with the distance (Press 2022).

    bias(q, k) = -slope_h (q - k)        causal
    bias(q, k) = -slope_h |q - k|        bidirectional

Slopes are 2 ** (-8 h / H) for H a power of two, h = 1 .. H; for other H, those of the next smaller
power of two, then every second one of the next larger (BLOOM). Nothing is learned.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.core.shapes import check_shapes
from weft.nn.positions.base import Bias, Position
from weft.nn.positions.config import AlibiConfig, PositionShape


class Alibi(Position):
    """-slope_h times the distance."""

    config_type = AlibiConfig

    def __init__(self, config: AlibiConfig, shape: PositionShape) -> None:
        super().__init__(config, shape)
        self.num_heads, self.is_causal = shape.num_heads, shape.is_causal

    def bias(self, layer: int, q_BTHC: Tensor) -> Bias:
        check_shapes(q_BTHC=q_BTHC, H=self.num_heads)
        # at least float32: bfloat16 cannot represent all distances beyond 256
        dtype = torch.promote_types(q_BTHC.dtype, torch.float32)
        return AlibiBias(slopes(self.num_heads, dtype, q_BTHC.device), self.is_causal)


@dataclass(frozen=True)
class AlibiBias(Bias):
    """The slopes; distances are computed tile by tile."""

    slope_H: Tensor
    is_causal: bool
    by_distance = True

    def at(self, t_T: Tensor, q_BT: Tensor, k_S: Tensor, *tensors: Tensor) -> Tensor:
        distance_BTS = q_BT[:, :, None] - k_S
        if not self.is_causal:
            distance_BTS = distance_BTS.abs()
        return -self.slope_H[:, None, None] * distance_BTS[:, None]


@functools.lru_cache(maxsize=64)
def slopes(num_heads: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """slope_H, steepest first."""
    power = 2 ** math.floor(math.log2(num_heads))
    of_power = [2.0 ** (-8 * (h + 1) / power) for h in range(power)]
    between = [2.0 ** (-4 * (2 * h + 1) / power) for h in range(num_heads - power)]
    with torch.inference_mode(False):
        return torch.tensor(of_power + between, dtype=dtype, device=device)
