"""Settings of the position encodings, one class per kind, and of RoPE scaling.

Separate from the encodings for the same reason as nn/config.py. A new kind adds its class to
POSITION_CONFIGS; the union of settings is derived from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from pydantic import Field

from weft.core.config import Config
from weft.core.errors import ConfigError, Problem


@dataclass(frozen=True)
class PositionShape:
    """Sizes of the stack that a position encoding serves."""

    width: int
    num_heads: int
    head_size: int
    """Size of the query vectors that `bias` reads."""
    rotary_size: int
    """Size of the vectors that `rotate_queries` and `rotate_keys` change: head_size, or for MLA
    the decoupled part that carries the position."""
    num_layers: int
    max_len: int
    is_causal: bool


class PositionConfigBase(Config):
    """Base of the settings of position encodings; `kind` selects the entry of POSITIONS."""

    kind: str
    """Name of the encoding in the table POSITIONS."""

    @property
    def max_cached_len(self) -> int | None:
        """Longest sequence that has positions, or whose cached keys stay valid while it grows;
        None: any length."""
        return None

    def check_shape(self, shape: PositionShape) -> None:
        """Raise a ConfigError if this encoding cannot serve a stack of these sizes."""

    def weight_shapes(self, shape: PositionShape) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the trained weights of this encoding."""
        return {}


class NoPositionConfig(PositionConfigBase):
    """No position encoding. The causal mask alone gives a decoder some information about order
    (NoPE, Haviv 2022); an encoder without positions ignores the order of its input."""

    kind: Literal["none"] = "none"
    """No position encoding: without a causal mask, attention ignores the order of the tokens."""


class SinusoidalConfig(PositionConfigBase):
    """Settings of the sinusoids."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    """Sines and cosines added to the embeddings (Vaswani 2017)."""
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

    def check_shape(self, shape: PositionShape) -> None:
        min_width = 4 if self.spacing == "fairseq" else 2
        if shape.width % 2 or shape.width < min_width:
            raise ConfigError(
                [
                    f"width is {shape.width}: sinusoidal positions are pairs of sine and cosine, "
                    f"so it must be even and at least {min_width}. Change width."
                ]
            )


class LearnedConfig(PositionConfigBase):
    """Settings of the table."""

    kind: Literal["learned"] = "learned"
    """A trained vector per position, added to the embeddings (GPT-2, BERT)."""
    max_len: int | None = Field(None, ge=1)
    """Positions in the table; longer sequences are refused. None: the model's max_len."""
    offset: int = Field(0, ge=0)
    """Rows of the table before position 0. 2: BART and OPT, which reserve rows for padding."""
    init_std: float = Field(0.02, gt=0)
    """Standard deviation of the normal distribution that the trained table starts from."""

    @property
    def max_cached_len(self) -> int | None:
        return self.max_len

    def weight_shapes(self, shape: PositionShape) -> dict[str, tuple[int, ...]]:
        return {"table_MD": (self.offset + (self.max_len or shape.max_len), shape.width)}


class ShawConfig(PositionConfigBase):
    """Settings of the learned distance vectors."""

    kind: Literal["shaw"] = "shaw"
    """Trained vectors per clipped distance; their products with the queries are added to the scores
    (Shaw 2018)."""
    max_distance: int = Field(16, ge=1)
    """Larger distances are clipped to this one (16 in the paper)."""
    init_std: float = Field(0.02, gt=0)
    """Standard deviation of the normal distribution that the trained table starts from."""

    def weight_shapes(self, shape: PositionShape) -> dict[str, tuple[int, ...]]:
        rows = self.max_distance + 1 + (0 if shape.is_causal else self.max_distance)
        return {"table_LMC": (shape.num_layers, rows, shape.head_size)}


class T5BiasConfig(PositionConfigBase):
    """Settings of the buckets."""

    kind: Literal["bucketed"] = "bucketed"
    """A trained bias per head and bucket of distances, added to the scores (T5)."""
    num_buckets: int = Field(32, ge=4)
    """Number of trained biases per head; distances are sorted into them, long ones
    logarithmically."""
    max_distance: int = Field(128, ge=2)
    """All keys at least this far away share one bucket."""
    init_std: float = Field(0.02, gt=0)
    """Standard deviation of the normal distribution that the trained table starts from."""

    def cross_checks(self) -> Iterable[Problem]:
        if self.num_buckets % 2:
            yield Problem(
                f"num_buckets is {self.num_buckets}: each side of a token gets half of them, so it "
                f"must be even. Use {self.num_buckets + 1}.",
                ("num_buckets",),
            )
        if self.max_distance <= self.num_buckets // 2:
            yield Problem(
                f"max_distance is {self.max_distance} but num_buckets is {self.num_buckets}: half "
                "of the buckets hold one distance each, and the rest must reach further. "
                f"Use a max_distance above {self.num_buckets // 2}, or fewer buckets.",
                ("max_distance", "num_buckets"),
            )

    def weight_shapes(self, shape: PositionShape) -> dict[str, tuple[int, ...]]:
        return {"table_MH": (self.num_buckets, shape.num_heads)}


class AlibiConfig(PositionConfigBase):
    """Settings of ALiBi: it has none."""

    kind: Literal["alibi"] = "alibi"
    """A bias that grows linearly with the distance, added to the scores (ALiBi, Press 2022)."""


class ScalingBase(Config):
    """Base of the rules; by itself, angles as trained."""

    @property
    def attention_scaling(self) -> float:
        """Factor on cosine and sine (transformers: attention_factor)."""
        return 1.0

    @property
    def softmax_factor(self) -> float:
        """Factor on the softmax scale of DeepSeek's latent attention; other models have none."""
        return 1.0


class NoScaling(ScalingBase):
    """Angles as trained."""

    kind: Literal["none"] = "none"
    """Positions are used as they are, without scaling."""


class LinearScaling(ScalingBase):
    """All angles divided by one factor: position interpolation."""

    kind: Literal["linear"] = "linear"
    """All positions are divided by a factor (Chen 2023)."""
    factor: float = Field(ge=1)
    """How many times longer than in training a sequence may be."""


class DynamicScaling(ScalingBase):
    """A base that grows with the sequence; up to the original length it is plain RoPE.

    Beyond it, the angles of all earlier tokens change with every new token, so that cached keys
    would be wrong: such sequences run without a KV cache only.
    """

    kind: Literal["dynamic"] = "dynamic"
    """The base grows with the length of the text (dynamic NTK)."""
    factor: float = Field(ge=1)
    """How fast the base grows once a text is longer than original_max_len."""
    original_max_len: int = Field(ge=1)
    """Longest sequence that the model was trained with, in tokens."""


class YarnScaling(ScalingBase):
    """Low frequencies are interpolated, high ones kept, and the softmax is sharpened slightly."""

    kind: Literal["yarn"] = "yarn"
    """Low frequencies are interpolated, high ones kept (YaRN, Peng 2023)."""
    factor: float = Field(ge=1)
    """How many times longer than in training a sequence may be."""
    original_max_len: int = Field(ge=1)
    """Longest sequence that the model was trained with, in tokens."""
    beta_fast: float = Field(32.0, gt=0)
    """Pairs with more rotations than this over the original length are kept."""
    beta_slow: float = Field(1.0, gt=0)
    """Pairs with fewer rotations than this are divided by the factor."""
    attention_factor: float | None = Field(None, gt=0)
    """Factor on cosine and sine. None: 0.1 ln(factor) + 1, or the ratio of the same with the two
    mscales if both are set."""
    mscale: float | None = None
    """DeepSeek: weight of ln(factor) in the numerator."""
    mscale_all_dim: float | None = None
    """DeepSeek: weight of ln(factor) in the denominator, and in its softmax scale."""
    truncate: bool = True
    """True: the ramp begins and ends at whole pairs. False: gpt-oss."""

    def cross_checks(self) -> Iterable[Problem]:
        if self.beta_fast < self.beta_slow:
            yield Problem(
                f"beta_fast is {self.beta_fast} but beta_slow is {self.beta_slow}: it counts the "
                f"rotations of faster pairs. Use a beta_fast of at least {self.beta_slow}.",
                ("beta_fast", "beta_slow"),
            )

    @property
    def attention_scaling(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self.mscale_of(self.mscale) / self.mscale_of(self.mscale_all_dim)
        return self.mscale_of(1.0)

    @property
    def softmax_factor(self) -> float:
        return self.mscale_of(self.mscale_all_dim) ** 2 if self.mscale_all_dim else 1.0

    def mscale_of(self, weight: float) -> float:
        """0.1 weight ln(factor) + 1 (transformers: get_mscale)."""
        return 1.0 if self.factor <= 1 else 0.1 * weight * math.log(self.factor) + 1.0


class Llama3Scaling(ScalingBase):
    """Long wavelengths are interpolated, short ones kept, a ramp between."""

    kind: Literal["llama3"] = "llama3"
    """Low frequencies are divided by a factor, high ones kept, a band between them mixed (Llama
    3.1)."""
    factor: float = Field(8.0, ge=1)
    """How many times longer than in training a sequence may be."""
    low_frequency_factor: float = Field(1.0, gt=0)
    """Frequencies with a wavelength above original_max_len / this are divided by the factor."""
    high_frequency_factor: float = Field(4.0, gt=0)
    """Frequencies with a wavelength below original_max_len / this are kept."""
    original_max_len: int = Field(8192, ge=1)
    """Longest sequence that the model was trained with, in tokens."""

    def cross_checks(self) -> Iterable[Problem]:
        low, high = self.low_frequency_factor, self.high_frequency_factor
        if high <= low:
            yield Problem(
                f"high_frequency_factor is {high} but low_frequency_factor is {low}: the high one "
                f"must be larger. Use a high_frequency_factor above {low}.",
                ("high_frequency_factor", "low_frequency_factor"),
            )


RopeScaling = Annotated[
    NoScaling | LinearScaling | DynamicScaling | YarnScaling | Llama3Scaling,
    Field(discriminator="kind"),
]


class RotaryConfig(PositionConfigBase):
    """Settings of the rotation."""

    kind: Literal["rotary"] = "rotary"
    """Queries and keys are rotated by an angle per position (RoPE, Su 2021)."""
    base: float = Field(10000.0, gt=1)
    """The slowest pair makes one turn in about 2 pi * base tokens. 500000: Llama 3."""
    fraction: float = Field(1.0, gt=0, le=1)
    """Part of each head that is rotated; the rest, at its end, is not. 0.25: GPT-NeoX."""
    layout: Literal["halves", "interleaved"] = "halves"
    """halves: element i is paired with i + O/2 (Llama). interleaved: 2i with 2i + 1 (DeepSeek,
    GPT-J)."""
    scaling: RopeScaling = NoScaling()
    """Rule for sequences longer than those of training."""

    @property
    def max_cached_len(self) -> int | None:
        """With dynamic scaling, angles beyond the original length depend on the length."""
        return self.scaling.original_max_len if self.scaling.kind == "dynamic" else None

    def rotated_size(self, rotary_size: int) -> int:
        """Elements of a head that are rotated."""
        return int(rotary_size * self.fraction)

    def check_shape(self, shape: PositionShape) -> None:
        size = self.rotated_size(shape.rotary_size)
        min_size = 4 if self.scaling.kind == "dynamic" else 2
        if size % 2 or size < min_size:
            raise ConfigError(
                [
                    f"rotary positions would rotate {size} elements of a head (fraction "
                    f"{self.fraction:g} of {shape.rotary_size}): they rotate pairs, so it must be "
                    f"even and at least {min_size}. Change the head size or position.fraction."
                ]
            )


POSITION_CONFIGS: tuple[type[PositionConfigBase], ...] = (
    NoPositionConfig,
    SinusoidalConfig,
    LearnedConfig,
    ShawConfig,
    T5BiasConfig,
    AlibiConfig,
    RotaryConfig,
)
"""In the order of POSITIONS (encodings.py)."""


def config_union(configs: Iterable[type[PositionConfigBase]]) -> Any:
    """Settings of several kinds, discriminated by `kind`: an annotation for pydantic."""
    return Annotated[Union[tuple(configs)], Field(discriminator="kind")]  # noqa: UP007


if TYPE_CHECKING:
    # type checkers cannot read a union that is computed: for them it is the base class
    PositionConfig = PositionConfigBase
else:
    PositionConfig = config_union(POSITION_CONFIGS)
