"""Sinusoidal positions: x_BTD -> x_BTD, sinusoids added to the embedding (Vaswani 2017, 3.5).

    PE(p, 2i) = sin(p / base ** (2i / D)),   PE(p, 2i + 1) = cos(p / base ** (2i / D))

Any length: rows are computed on demand. Differs from the paper on request: sines and cosines in two
halves (Marian), and fairseq's spacing of the wavelengths and first position.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft.core.shapes import check_shapes
from weft.nn.positions.base import Position
from weft.nn.positions.config import PositionShape, SinusoidalConfig
from weft.nn.positions.position_table import PositionTable


class Sinusoidal(Position):
    """x + PE(position)."""

    config_type = SinusoidalConfig

    def __init__(self, config: SinusoidalConfig, shape: PositionShape) -> None:
        super().__init__(config, shape)
        config.check_shape(shape)
        self.config, self.width = config, shape.width
        self.table = PositionTable(self.sinusoids)

    def add(self, x_BTD: Tensor, positions_BT: Tensor) -> Tensor:
        check_shapes(x_BTD=x_BTD, D=self.width)
        return x_BTD + self.table.rows(positions_BT).to(x_BTD.dtype)

    def position_rows(self, num_rows: int) -> Tensor | None:
        return self.table.first_rows(num_rows, torch.device("cpu"))

    def sinusoids(self, positions_N: Tensor) -> Tensor:
        """PE of each position. Angles in float64: float32 is off by 0.0005 at position 10,000."""
        half = self.width // 2
        steps = half if self.config.spacing == "paper" else half - 1
        exponents = torch.arange(half, dtype=torch.float64, device="cpu") / steps
        angles = (positions_N + self.config.offset)[:, None] / self.config.base**exponents
        if self.config.layout == "halves":
            return torch.cat((angles.sin(), angles.cos()), dim=-1).float()
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2).float()
