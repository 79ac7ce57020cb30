"""Sinusoidal positions: x_BTD -> x_BTD, sinusoids added to the embedding (Vaswani 2017, 3.5).

    PE(p, 2i) = sin(p / base ** (2i / D)),   PE(p, 2i + 1) = cos(p / base ** (2i / D))

Any length: rows are computed on demand. Differs from the paper on request: sines and cosines in two
halves (Marian), and fairseq's spacing of the wavelengths and first position.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from weft.core.errors import ConfigError
from weft.core.shapes import check_shapes
from weft.nn.positions.base import Position, PositionConfigBase, PositionShape
from weft.nn.positions.position_table import PositionTable


class SinusoidalConfig(PositionConfigBase):
    """Settings of the sinusoids."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    base: float = Field(10000.0, gt=1)
    """Wavelength of the slowest sinusoid, in units of 2 pi tokens."""
    layout: Literal["interleaved", "halves"] = "interleaved"
    """interleaved: sin, cos, sin, cos, ... (the paper). halves: all sines, then all cosines
    (Marian, fairseq)."""
    spacing: Literal["paper", "fairseq"] = "paper"
    """paper: wavelength i is base ** (2i / D). fairseq: base ** (i / (D/2 - 1)), so that the last
    one is exactly `base` (M2M100, NLLB)."""
    offset: int = Field(0, ge=0)
    """Added to every position. 2: fairseq, whose first token has position padding_idx + 1."""


class Sinusoidal(Position):
    """x + PE(position)."""

    config_type = SinusoidalConfig

    def __init__(self, config: SinusoidalConfig, shape: PositionShape) -> None:
        super().__init__(config, shape)
        min_width = 4 if config.spacing == "fairseq" else 2
        if shape.width % 2 or shape.width < min_width:
            raise ConfigError(
                [
                    f"width is {shape.width}: sinusoidal positions are pairs of sine and cosine, "
                    f"so it must be even and at least {min_width}. Change width."
                ]
            )
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
