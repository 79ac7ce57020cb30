"""POSITIONS: the class that serves one stack, by the `kind` of its settings.

A new kind is one file with a Position, its settings in config.py, and one line in this table.
"""

from __future__ import annotations

from weft.core.registry import pick
from weft.nn.positions.alibi import Alibi
from weft.nn.positions.base import Position
from weft.nn.positions.config import PositionConfig, PositionShape
from weft.nn.positions.learned import Learned
from weft.nn.positions.rotary import Rotary
from weft.nn.positions.shaw import Shaw
from weft.nn.positions.sinusoidal import Sinusoidal
from weft.nn.positions.t5_bias import T5Bias

POSITIONS: dict[str, type[Position]] = {
    "none": Position,
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "shaw": Shaw,
    "bucketed": T5Bias,
    "alibi": Alibi,
    "rotary": Rotary,
}


def build_position(config: PositionConfig, shape: PositionShape) -> Position:
    """The encoding that `config.kind` selects; a ConfigError if it cannot serve this shape."""
    return pick(POSITIONS, config.kind, "position encoding")(config, shape)
