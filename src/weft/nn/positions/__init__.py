"""The table of position encodings: settings -> a `Position` that serves one stack.

    none        nothing                                         none.py
    sinusoidal  waves added to the embedding, any length        sinusoidal.py
    learned     a table added to the embedding, up to max_len   learned.py
    shaw        learned distances, met by the query             shaw.py
    bucketed    a learned number per bucket of distances (T5)   bucketed.py
    alibi       a fixed slope per head                          alibi.py
    rotary      queries and keys turned (scaling.py: longer)    rotary.py

A new kind is one file, one line in POSITIONS and one name in PositionConfig.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from weft.core.choices import pick
from weft.nn.positions.alibi import Alibi, AlibiConfig
from weft.nn.positions.base import Bias, Position, PositionShape
from weft.nn.positions.bucketed import Bucketed, BucketedConfig
from weft.nn.positions.learned import Learned, LearnedConfig
from weft.nn.positions.none import NoPositionConfig
from weft.nn.positions.rotary import Rotary, RotaryConfig
from weft.nn.positions.shaw import Shaw, ShawConfig
from weft.nn.positions.sinusoidal import Sinusoidal, SinusoidalConfig

__all__ = [
    "POSITIONS",
    "AlibiConfig",
    "Bias",
    "BucketedConfig",
    "LearnedConfig",
    "NoPositionConfig",
    "Position",
    "PositionConfig",
    "PositionShape",
    "RotaryConfig",
    "ShawConfig",
    "SinusoidalConfig",
    "build_position",
]

POSITIONS: dict[str, type[Position]] = {
    "none": Position,
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "shaw": Shaw,
    "bucketed": Bucketed,
    "alibi": Alibi,
    "rotary": Rotary,
}

PositionConfig = Annotated[
    NoPositionConfig
    | SinusoidalConfig
    | LearnedConfig
    | ShawConfig
    | BucketedConfig
    | AlibiConfig
    | RotaryConfig,
    Field(discriminator="kind"),
]


def build_position(config: PositionConfig, shape: PositionShape) -> Position:
    """The encoding that `config.kind` names; a ConfigError if it cannot serve this shape."""
    return pick(POSITIONS, config.kind, "position encoding")(config, shape)
