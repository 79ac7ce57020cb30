"""Position encodings. The table POSITIONS maps `kind` to the class that serves one stack.

    base            the contract: Position, Bias, PositionShape; kind none
    sinusoidal      sinusoids added to the embedding, any length
    learned         a trained table added to the embedding, up to max_len
    shaw            learned distance vectors, multiplied by the query
    t5_bias         a learned value per bucket of distances (kind bucketed)
    alibi           a fixed slope per head
    rotary          RoPE: queries and keys rotated
    rope_scaling    RoPE for sequences longer than those of training
    position_table  caches of values that depend on positions alone

A new kind is one file with a Position and its settings, and one line in POSITIONS. The union of
settings is derived from the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import Field

from weft.core.registry import pick
from weft.nn.positions.alibi import Alibi, AlibiConfig
from weft.nn.positions.base import (
    Bias,
    NoPositionConfig,
    Position,
    PositionConfigBase,
    PositionShape,
)
from weft.nn.positions.learned import Learned, LearnedConfig
from weft.nn.positions.rotary import Rotary, RotaryConfig
from weft.nn.positions.shaw import Shaw, ShawConfig
from weft.nn.positions.sinusoidal import Sinusoidal, SinusoidalConfig
from weft.nn.positions.t5_bias import T5Bias, T5BiasConfig

__all__ = [
    "POSITIONS",
    "AlibiConfig",
    "Bias",
    "LearnedConfig",
    "NoPositionConfig",
    "Position",
    "PositionConfig",
    "PositionShape",
    "RotaryConfig",
    "ShawConfig",
    "SinusoidalConfig",
    "T5BiasConfig",
    "build_position",
    "config_union",
]

POSITIONS: dict[str, type[Position]] = {
    "none": Position,
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "shaw": Shaw,
    "bucketed": T5Bias,
    "alibi": Alibi,
    "rotary": Rotary,
}


def config_union(positions: Mapping[str, type[Position]]) -> Any:
    """The settings of all kinds of a table, discriminated by `kind`: an annotation for pydantic."""
    configs = tuple(position.config_type for position in positions.values())
    return Annotated[Union[configs], Field(discriminator="kind")]  # noqa: UP007


if TYPE_CHECKING:
    # type checkers cannot read a union that is computed: for them it is the base class
    PositionConfig = PositionConfigBase
else:
    PositionConfig = config_union(POSITIONS)


def build_position(config: PositionConfig, shape: PositionShape) -> Position:
    """The encoding that `config.kind` selects; a ConfigError if it cannot serve this shape."""
    return pick(POSITIONS, config.kind, "position encoding")(config, shape)
