"""Rotary positions: x_BTHO -> x_BTHO, each pair turned by position * speed (RoPE, Su 2021).

    (a, b) -> (a cos - b sin, b cos + a sin)

A product of a turned query and a turned key depends on their distance alone. Differs from the
paper: pairs may be halves of the head (Llama) or neighbours (the paper, GPT-J, DeepSeek); a part of
the head may stay; scaling.py stretches the angles for texts longer than those of training.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from weft.core.config import Config
from weft.core.errors import ConfigError
from weft.core.shapes import check_shapes
from weft.nn.positions.base import Position, PositionShape
from weft.nn.positions.growing import GrowingTable, Recent
from weft.nn.positions.scaling import NoScaling, RotaryScaling


class RotaryConfig(Config):
    """Settings of the rotation."""

    kind: Literal["rotary"] = "rotary"
    base: float = Field(10000.0, gt=1)
    """The slowest pair turns once in about 2 pi * base tokens. 500000: Llama 3."""
    fraction: float = Field(1.0, gt=0, le=1)
    """Part of each head that turns; the rest, at its end, stays. 0.25: GPT-NeoX."""
    layout: Literal["halves", "interleaved"] = "halves"
    """halves: number i is paired with i + O/2 (Llama). interleaved: 2i with 2i + 1 (DeepSeek,
    GPT-J)."""
    scaling: RotaryScaling = NoScaling()
    """Rule for texts longer than those of training."""


class Rotary(Position):
    """x cos + swapped(x) sin, where swapped(x) holds each number's partner and sin the sign."""

    def __init__(self, config: RotaryConfig, shape: PositionShape) -> None:
        super().__init__(config, shape)
        self.config = config
        self.rotary_size = shape.rotary_size
        self.size = int(shape.rotary_size * config.fraction)
        check_size(self.size, config, shape)
        self.turns_late = config.scaling.kind == "dynamic"
        self.table = GrowingTable(self.turns)
        self.recent: Recent[tuple[Tensor, Tensor]] = Recent()

    def rotate(self, x_BTHO: Tensor, positions_BT: Tensor, lengths: int | Tensor) -> Tensor:
        check_shapes(x_BTHO=x_BTHO, O=self.rotary_size)
        cos_BTHO, sin_BTHO = self.turns_at(positions_BT, lengths, x_BTHO.dtype)
        if self.size == x_BTHO.shape[-1]:
            return self.turn(x_BTHO, cos_BTHO, sin_BTHO)
        x_BTHO, rest = x_BTHO[..., : self.size], x_BTHO[..., self.size :]
        return torch.cat((self.turn(x_BTHO, cos_BTHO, sin_BTHO), rest), dim=-1)

    def turn(self, x_BTHO: Tensor, cos_BTHO: Tensor, sin_BTHO: Tensor) -> Tensor:
        # in place on fresh tensors: half the memory traffic. No addcmul: it may round once instead
        # of twice, depending on where in the tensor a number lies
        return (x_BTHO * cos_BTHO).add_(self.swapped(x_BTHO).mul_(sin_BTHO))

    def swapped(self, x_BTHO: Tensor) -> Tensor:
        """A copy in which the two numbers of each pair have changed places."""
        if self.config.layout == "halves":
            return x_BTHO.roll(self.size // 2, -1)
        return x_BTHO.unflatten(-1, (-1, 2)).roll(1, -1).flatten(-2)

    def turns_at(
        self, positions_BT: Tensor, lengths: int | Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Cosine and signed sine of each token, each [B or 1, T, 1, O]; made once a pass."""
        key = (positions_BT, dtype, lengths if self.turns_late else None)
        return self.recent.get(key, lambda: self.look_up(positions_BT, lengths, dtype))

    # ordinary tensors even inside inference_mode: what is remembered there must serve training too
    @torch.inference_mode(False)
    @torch.no_grad()
    def look_up(
        self, positions_BT: Tensor, lengths: int | Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        cos_BTHO, sin_BTHO = self.turns_of(positions_BT, lengths).to(dtype).unbind(2)
        return cos_BTHO, sin_BTHO

    def turns_of(self, positions_BT: Tensor, lengths: int | Tensor) -> Tensor:
        """Both stacked, from the table, or computed for sequences with angles of their own."""
        scaling = self.config.scaling
        if scaling.kind != "dynamic":
            return self.table.rows(positions_BT)
        each = lengths.tolist() if isinstance(lengths, Tensor) else [lengths]
        if max(each) <= scaling.original_max_len:
            return self.table.rows(positions_BT)
        rows = zip(positions_BT.expand(len(each), -1).unbind(0), each, strict=True)
        return torch.stack([self.turns(positions_T, n) for positions_T, n in rows])

    def turns(self, positions_N: Tensor, length: int = 0) -> Tensor:
        """Cosine and signed sine in a sequence of this length, [N, 2, 1, O], float32."""
        scaling = self.config.scaling
        speeds = scaling.speeds(self.config.base, self.size, length).to(positions_N.device)
        angles = positions_N[:, None].float() * speeds
        cos, sin = angles.cos() * scaling.magnitude, angles.sin() * scaling.magnitude
        cos_NO, sin_NO = self.laid_out(cos, cos), self.laid_out(-sin, sin)
        return torch.stack((cos_NO, sin_NO), dim=1)[:, :, None]

    def laid_out(self, first: Tensor, second: Tensor) -> Tensor:
        """Numbers for the first of each pair and for the second, in the order of the layout."""
        if self.config.layout == "halves":
            return torch.cat((first, second), dim=-1)
        return torch.stack((first, second), dim=-1).flatten(-2)


def check_size(size: int, config: RotaryConfig, shape: PositionShape) -> None:
    """Whether the part of a head that turns consists of pairs."""
    least = 4 if config.scaling.kind == "dynamic" else 2
    if size % 2 or size < least:
        raise ConfigError(
            [
                f"rotary positions would turn {size} numbers of a head (fraction "
                f"{config.fraction:g} of {shape.rotary_size}): they turn pairs, so it must be even "
                f"and at least {least}. Change the head size or position.fraction."
            ]
        )
