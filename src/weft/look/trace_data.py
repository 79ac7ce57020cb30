"""The parts of a trace: model, tokens, words, stages, next tokens, names of heads.

Sides: "src" are the tokens of the text, which the encoder reads, or the decoder if it is the only
stack; "tgt" are those that the decoder of an encoder-decoder reads, the start token first. Parts
with attention: "encoder", "decoder" and, between the two, "cross" (queries tgt, keys src).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import UsageError, shown
from weft.models.config import ModelConfig

SCHEMA = "weft.trace/1"
HEAD_AXES = ("head", "kv_head")
ROW_AXES = ("query", "token", "key")
"""The axis of `row`: the first of these that a stage has."""

Array = NDArray[np.float32]
Part = Literal["encoder", "decoder", "cross"]
Detail = Literal["auto", "full", "summary"]
Form = Literal["inline", "thumbnails", "keys"]


@dataclass(frozen=True)
class TraceModel:
    """What the model is, from its config."""

    name: str
    kind: str
    """encoder-decoder, decoder or encoder."""
    layers: tuple[int, ...]
    """Of the encoder and the decoder, or of the only stack."""
    heads: int
    kv_heads: int
    width: int
    attention: str
    """mha, gqa, mqa or mla."""
    position: str
    norm: str
    vocab: int
    dtype: str = "float32"
    head_size: int = 0
    feedforward: str = ""
    """relu, swiglu, ..., or experts."""
    window: int | None = None
    """Keys that a layer with a sliding window attends to."""
    weights: str = "float32"
    """Number format of the weights: float32, or q8, q4, ... of a quantized model."""
    pattern: str = "full"
    """Which keys a query may attend to besides the causal mask."""

    @property
    def stacks(self) -> dict[str, int]:
        """Number of layers by stack."""
        names = ("encoder", "decoder") if self.kind == "encoder-decoder" else (self.kind,)
        return dict(zip(names, self.layers, strict=True))

    @property
    def parts(self) -> dict[str, int]:
        """Number of layers by part: the stacks, and cross."""
        cross = {"cross": self.layers[-1]} if self.kind == "encoder-decoder" else {}
        return {**self.stacks, **cross}

    @property
    def main_part(self) -> str:
        """The part that a bare `2.3` means: the decoder, or the only stack."""
        return "encoder" if self.kind == "encoder" else "decoder"


@dataclass(frozen=True)
class TraceToken:
    """One token of a text."""

    i: int
    id: int
    text: str
    """Readable: whole characters. A token that is not valid UTF-8 by itself has its bytes in hex,
    `E8 8B`."""
    bytes: str
    """The UTF-8 bytes it stands for, in hex."""
    span: tuple[int, int]
    """The characters of the text that it covers, wholly or in part; empty for a special token."""
    word: int | None
    """Index of the word it belongs to; None: none, as for special tokens and spaces."""
    is_special: bool = False


@dataclass(frozen=True)
class Word:
    """A word of a text and its tokens."""

    text: str
    span: tuple[int, int]
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Stage:
    """One value of the forward pass. Formulas, axes and inputs are in stages.py."""

    name: str
    op: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    formula: str
    inputs: tuple[str, ...] = ()
    stats: Mapping[str, float] | None = None
    """min, max and mean of the finite values; None: not kept, so not known."""
    is_kept: bool = True
    """False: the values are computed again when they are asked for."""


@dataclass(frozen=True)
class NextToken:
    """A token that may come next."""

    id: int
    text: str
    bytes: str
    logit: float
    p: float
    """Softmax of the logits, before temperature and truncation."""


@dataclass(frozen=True)
class LogitLens:
    """The most likely next tokens after each layer (logit_lens.py)."""

    stack: str
    positions: tuple[int, ...]
    top: tuple[tuple[tuple[NextToken, ...], ...], ...]
    """By layer and position, best first."""


@dataclass(frozen=True)
class SampledToken:
    """The token that the sampling parameters choose at the last position."""

    id: int
    text: str
    bytes: str
    p: float
    u: float | None
    """The random number of the draw; None: greedy."""


@dataclass(frozen=True)
class TraceLimits:
    """How much is kept of a text of this length."""

    tokens: int
    reduced: bool
    form: Form = "inline"
    """inline: all arrays. thumbnails: block means of the weights, rows again from the layers'
    inputs. keys: K and V only; a row runs its token again."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, order=True)
class HeadName:
    """One head: part, layer and head. `parse` reads 2.3, cross.2.3, encoder.2.3."""

    part: str
    layer: int
    head: int

    def __str__(self) -> str:
        return f"{self.part}.{self.layer}.{self.head}"

    @property
    def prefix(self) -> str:
        """What the names of its stages begin with: decoder.2.attention or decoder.2.cross."""
        if self.part == "cross":
            return f"decoder.{self.layer}.cross"
        return f"{self.part}.{self.layer}.attention"

    @classmethod
    def parse(cls, text: object, config: ModelConfig) -> HeadName:
        """From "2.3", "cross.2.3", (2, 3) or ("cross", 2, 3); a UsageError unless the model has
        this head."""
        parts = parts_of(config)
        main = "encoder" if config.kind == "encoder" else "decoder"
        fields = text.split(".") if isinstance(text, str) else [str(one) for one in as_list(text)]
        part, *numbers = fields if len(fields) == 3 else (main, *fields)
        if len(numbers) != 2 or not all(re.fullmatch(r"\d{1,9}", n) for n in numbers):
            raise UsageError(
                f"a head is {shown(text)}: it must be LAYER.HEAD, counted from 0, or with a part "
                f"before it ({', '.join(parts)}). Use for example {main}.0.0."
            )
        layer, head = map(int, numbers)
        if part not in parts or layer >= parts[part] or head >= config.attention.num_heads:
            sizes = ", ".join(f"{name} has {number} layers" for name, number in parts.items())
            raise UsageError(
                f"there is no head {part}.{layer}.{head}: {sizes} of "
                f"{config.attention.num_heads} heads, counted from 0. Use one of them."
            )
        return cls(part, layer, head)


def as_list(value: object) -> list[object]:
    return list(value) if isinstance(value, tuple | list) else [value]


def parts_of(config: ModelConfig) -> dict[str, int]:
    """Number of layers by part."""
    if config.kind != "encoder-decoder":
        return {config.kind: config.num_layers}
    L = config.layers_of("decoder")
    return {"encoder": config.layers_of("encoder"), "decoder": L, "cross": L}


def axis_of(axes: tuple[str, ...], names: tuple[str, ...]) -> int | None:
    """The dimension of the first of these names that a stage has."""
    return next((axes.index(name) for name in names if name in axes), None)
