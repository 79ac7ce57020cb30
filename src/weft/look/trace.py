"""`Trace`: every stage of one forward pass with name, shape, formula and values (weft.trace/1).

    trace = recorder.record(model, tokenizer, "...")     or, from a loaded model, m.look("...")
    trace.tokens["src"], trace.words["src"]              TraceToken, Word: lists of equal meaning
    trace.stage("decoder.0.attention.q")                 name, shape, axes, formula, statistics
    trace.array("decoder.0.attention.weights", head=3)   exact float32, whatever is kept
    trace.candidates["decoder"][-1]                      the most likely next tokens, best first
    trace.find("它", "苹果"), trace.logit_lens()          rankings.py, logit_lens.py
    trace.to_html("trace.html")                           export.py; a notebook shows the same page
    trace.to_json()                                      trace_json.py

The names of all stages are listed in stages.py. Layers, heads and positions count from 0.

A long text is recorded in a reduced form (`TraceLimits`): `array` then computes the requested rows
again, from what is kept, with the model. `array_units` does so in steps of a few milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from weft.checkpoint.atomic import write_output
from weft.core.errors import UsageError, shown
from weft.look.export import notebook_frame, page_of_trace
from weft.look.logit_lens import logit_lens
from weft.look.neighbors import Neighbor
from weft.look.rankings import HeadSearch, TopKeys, find_heads, top_keys
from weft.look.trace_data import (
    HEAD_AXES,
    ROW_AXES,
    Array,
    Detail,
    HeadName,
    LogitLens,
    NextToken,
    SampledToken,
    Stage,
    TraceLimits,
    TraceModel,
    TraceToken,
    Word,
    axis_of,
)
from weft.look.trace_json import parts_of_json, to_json


class RowSource(Protocol):
    """Computes values that a trace does not keep."""

    def rows(self, stage: Stage, head: int | None, row: int | None) -> Iterator[Array | None]:
        """None after each unit of work of a few milliseconds, then the values."""

    def weights(self, part: str, row: int) -> Iterator[Array]:
        """The weights of one query in all heads of a layer, [head, key], layer by layer."""

    def next_tokens(
        self, stack: str, x_ND: Array, number: int
    ) -> Iterator[Sequence[tuple[NextToken, ...]]]:
        """The most likely next tokens after hidden states before the final norm, some rows per
        unit of work."""

    def neighbors(self, stack: str, token_id: int) -> Iterator[tuple[Neighbor, ...] | None]:
        """The tokens with the most similar embeddings: None after each unit of work, then they."""

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors that are kept for it."""


@dataclass(frozen=True)
class Trace:
    """One forward pass. Immutable; arrays are shared, do not write to them."""

    id: str
    model: TraceModel
    text: str
    target: str | None
    tokens: Mapping[str, tuple[TraceToken, ...]]
    """By side."""
    words: Mapping[str, tuple[Word, ...]]
    """By side."""
    stages: tuple[Stage, ...]
    """In the order of the computation."""
    arrays: Mapping[str, Array]
    """Of the stages that are kept, by name."""
    candidates: Mapping[str, tuple[tuple[NextToken, ...], ...]]
    """By stack with an LM head: the most likely tokens at each position."""
    limits: TraceLimits
    check: Mapping[str, float]
    """Measured agreement of independent computations of the same values (docs/look.md)."""
    sampled: SampledToken | None = None
    ablated: tuple[HeadName, ...] = ()
    """Heads whose output was set to zero."""
    detail: Detail = "auto"
    lens: LogitLens | None = None
    """If it is cheap; else `logit_lens` computes it."""
    source: RowSource | None = field(default=None, compare=False, repr=False)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{len(tokens)} {side} tokens" for side, tokens in self.tokens.items())
        return (
            f"Trace({self.model.name or self.model.kind!r}, {sizes}, {len(self.stages)} stages, "
            f"{len(self.arrays)} arrays)"
        )

    def stage(self, name: str) -> Stage:
        """The stage of a name; a UsageError that names the nearest if there is none."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        near = [one.name for one in self.stages if one.name.rsplit(".", 1)[0] in name][:8]
        raise UsageError(
            f"this trace has no stage {shown(name)}: it has {len(self.stages)} stages, such as "
            f"{', '.join(near or [one.name for one in self.stages[:8]])}. Use one of trace.stages."
        )

    def has(self, name: str) -> bool:
        return any(stage.name == name for stage in self.stages)

    def array(self, name: str, head: int | None = None, row: int | None = None) -> Array:
        """The exact values of a stage, or of one head, or of one row (query, token or key)."""
        for values in self.array_units(name, head, row):
            if values is not None:
                return values
        raise AssertionError(f"no values for {name}")

    def array_units(
        self, name: str, head: int | None = None, row: int | None = None
    ) -> Iterator[Array | None]:
        """`array` in units of work: None after each, then the values. Where they are not kept, the
        model runs: call next() where it is free."""
        stage = self.stage(name)
        check_index(stage, HEAD_AXES, head, "head")
        check_index(stage, ROW_AXES, row, "row")
        if name in self.arrays:
            yield selected(self.arrays[name], stage.axes, head, row)
            return
        if self.source is None:
            raise UsageError(
                f"{name} is not in this trace, which was read from a file or kept in a reduced "
                "form. Record the text again, with detail='full' if it is to be saved."
            )
        yield from self.source.rows(stage, head, row)

    def weights_of_row(self, part: str, row: int) -> Iterator[Array]:
        """The weights of one query in all heads of a layer, [head, key], layer by layer: the units
        of work of all layers. Faster than `array` for each layer where they are not kept."""
        names = [HeadName(part, i, 0).prefix + ".weights" for i in range(self.model.parts[part])]
        check_index(self.stage(names[0]), ROW_AXES, row, "row")
        if names[0] in self.arrays or self.source is None:
            yield from (self.array(name, row=row) for name in names)
        else:
            yield from self.source.weights(part, row)

    def side_of(self, part: str, axis: str = "query") -> str:
        """The side, "src" or "tgt", of the queries or keys of a part."""
        if self.model.kind != "encoder-decoder" or part == "encoder":
            return "src"
        return "src" if part == "cross" and axis == "key" else "tgt"

    def text_of(self, side: str) -> str:
        """The text of a side."""
        return self.text if side == "src" else self.target or ""

    @property
    def nbytes(self) -> int:
        """Bytes of all that is kept."""
        arrays = {id(values): values.nbytes for values in self.arrays.values()}
        return sum(arrays.values()) + (0 if self.source is None else self.source.nbytes)

    def find(self, query: str, key: str, part: str | None = None) -> HeadSearch:
        """All heads by the weight of one word on another (rankings.py)."""
        return find_heads(self, query, key, part)

    def top_keys(self, part: str, layer: int, head: int, row: int, number: int = 16) -> TopKeys:
        """The tokens that a token attends to most, and which share of the row they are."""
        name = HeadName(part, layer, head).prefix + ".weights"
        return top_keys(self.array(name, head, row), number)

    def logit_lens(self, positions: Sequence[int] | None = None) -> LogitLens:
        """The most likely next tokens after each layer (logit_lens.py)."""
        return logit_lens(self, positions)

    def neighbors(self, side: str, i: int) -> tuple[Neighbor, ...]:
        """The tokens of the vocabulary with the most similar embeddings, by cosine."""
        for tokens in self.neighbor_units(side, i):
            if tokens is not None:
                return tokens
        raise AssertionError("no neighbors")

    def neighbor_units(self, side: str, i: int) -> Iterator[tuple[Neighbor, ...] | None]:
        """`neighbors` in units of work: None after each, then the tokens."""
        tokens = self.tokens.get(side, ())
        if not 0 <= i < len(tokens):
            sides = ", ".join(f"{name} has {len(all_)}" for name, all_ in self.tokens.items())
            raise UsageError(
                f"token {i} of {shown(side)} does not exist: {sides}. Use one of them."
            )
        if self.source is None:
            raise UsageError(
                "a trace that was read from a file has no embedding table. Record it again."
            )
        stack = next(one for one in self.model.stacks if self.side_of(one) == side)
        yield from self.source.neighbors(stack, tokens[i].id)

    def to_json(self) -> dict[str, Any]:
        """The trace as in docs/look.md."""
        return to_json(self)

    def to_html(self, path: str | Path) -> None:
        """Write the page with this trace as a file that opens from a disk (export.py)."""
        write_output(Path(path), page_of_trace(self).encode())

    def _repr_html_(self) -> str:
        """The page, as a cell of a notebook."""
        return notebook_frame(self)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """For notebooks, and as text for terminals."""
        from weft.look.bars import ViewStyle  # the views import this module
        from weft.look.trace_views import overview

        text = "\n".join(overview(self, ViewStyle(80, False)))
        return {"text/plain": text, "text/html": self._repr_html_()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Trace:
        """A stored trace; it has the arrays that its JSON has in full."""
        return cls(**parts_of_json(data))


def check_index(stage: Stage, axes: tuple[str, ...], index: int | None, name: str) -> None:
    """Raise a UsageError for an index that the stage does not have."""
    if index is None:
        return
    axis = axis_of(stage.axes, axes)
    number = 0 if axis is None else stage.shape[axis]
    if not 0 <= index < number:
        allowed = f"0 to {number - 1}" if number else f"no {name}"
        raise UsageError(f"{name} is {index}, but {stage.name} has {number}: use {allowed}.")


def selected(values: Array, axes: tuple[str, ...], head: int | None, row: int | None) -> Array:
    """One head and one row of an array; None: all."""
    index: list[Any] = [slice(None)] * len(axes)
    for names, number in ((HEAD_AXES, head), (ROW_AXES, row)):
        axis = axis_of(axes, names)
        if axis is not None and number is not None:
            index[axis] = number
    return values[tuple(index)]
