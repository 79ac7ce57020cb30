"""A trace as JSON: `to_json`, and `from_json` for one that was stored. Schema weft.trace/1.

Arrays are float32, little-endian, base64 of the bytes, with their shape:

    "arrays": {"decoder.0.cross.weights": {"shape": [4, 9, 9], "dtype": "float32", "b64": "..."}}

Besides whole stages there are three derived arrays, for figures that do not need all numbers:

    NAME[:16]     the first 16 of the last dimension
    norm(NAME)    lengths of the vectors, [token]
    mean(NAME)    block means of weights, at most 32 x 32, each head by itself

`detail` of the trace selects what is in it: summary: no arrays; full: all arrays that are kept;
auto: weights, masks, lengths of vectors, the first 16 dimensions; no scores, no logits.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core.errors import DataError, shown
from weft.look.trace_data import (
    SCHEMA,
    Array,
    HeadName,
    LogitLens,
    NextToken,
    SampledToken,
    Stage,
    TraceLimits,
    TraceModel,
    TraceToken,
    Word,
)

if TYPE_CHECKING:
    from weft.look.trace import Trace

NUM_SHOWN = 16
"""Dimensions of a vector in `auto`."""
WHOLE = ("weights", "mask", "ids", "angles", "local_angles", "experts", "expert_weights", "rollout")
"""Stages that are in `auto` as a whole."""
LARGE = ("scores", "bias", "logits", "logits_delta", "expert_out")
"""Stages that are not in `auto`."""
NORMED = ("input", "embedding", "position", "out", "residual", "output", "norm", "norm_out")
"""Stages whose vectors have their lengths in `auto`."""


def to_json(trace: Trace) -> dict[str, Any]:
    """The trace as an object of JSON."""
    sampled = trace.sampled
    arrays = dict(selected_arrays(trace))
    return {
        "schema": SCHEMA,
        "id": trace.id,
        "model": asdict(trace.model),
        "text": trace.text,
        "target": trace.target,
        "tokens": {side: [asdict(one) for one in tokens] for side, tokens in trace.tokens.items()},
        "words": {side: [asdict(one) for one in words] for side, words in trace.words.items()},
        "stages": [stage_json(stage, stage.name in arrays) for stage in trace.stages],
        "arrays": {name: encode(values) for name, values in arrays.items()},
        "candidates": {
            stack: [[asdict(one) for one in row] for row in rows]
            for stack, rows in trace.candidates.items()
        },
        "sampled": None if sampled is None else asdict(sampled),
        "lens": None if trace.lens is None else asdict(trace.lens),
        "ablated": [str(head) for head in trace.ablated],
        "detail": trace.detail,
        "limits": {**asdict(trace.limits), "notes": list(trace.limits.notes)},
        "check": dict(trace.check),
    }


def stage_json(stage: Stage, is_inline: bool) -> dict[str, Any]:
    return {
        "name": stage.name,
        "op": stage.op,
        "shape": list(stage.shape),
        "axes": list(stage.axes),
        "formula": stage.formula,
        "inputs": list(stage.inputs),
        "stats": None if stage.stats is None else dict(stage.stats),
        "inline": is_inline,
    }


def selected_arrays(trace: Trace) -> Iterator[tuple[str, Array]]:
    """The arrays that the detail of a trace puts into its JSON."""
    if trace.detail == "summary":
        return
    for name, values in trace.arrays.items():
        last = name.rsplit(".", 1)[-1]
        if trace.detail == "full" or last in WHOLE or "(" in name:
            yield name, values
        elif last in LARGE:
            continue
        elif values.shape[-1] <= NUM_SHOWN:
            yield name, values
        else:
            yield f"{name}[:{NUM_SHOWN}]", values[..., :NUM_SHOWN]
        if trace.detail == "auto" and last in NORMED and values.ndim == 2:
            yield f"norm({name})", np.linalg.norm(values, axis=-1)


def encode(values: Array) -> dict[str, Any]:
    """Shape, dtype and base64 of an array."""
    data = np.ascontiguousarray(values, dtype="<f4")
    return {
        "shape": list(values.shape),
        "dtype": "float32",
        "b64": base64.b64encode(data.tobytes()).decode("ascii"),
    }


def decode(entry: Mapping[str, Any]) -> Array:
    """The array of an entry of `arrays`."""
    data = np.frombuffer(base64.b64decode(entry["b64"]), dtype="<f4")
    return data.reshape(entry["shape"]).astype(np.float32)


def parts_of_json(data: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a Trace."""
    if data.get("schema") != SCHEMA:
        raise DataError(
            f"schema is {shown(data.get('schema'))}: a stored trace has schema {SCHEMA}. Store it "
            "again with this version of Weft."
        )
    arrays = {name: decode(entry) for name, entry in data["arrays"].items()}
    model, sampled, lens = data["model"], data["sampled"], data["lens"]
    limits = {**data["limits"], "notes": tuple(data["limits"]["notes"])}
    return {
        "id": data["id"],
        "model": TraceModel(**{**model, "layers": tuple(model["layers"])}),
        "text": data["text"],
        "target": data["target"],
        "tokens": {side: tuple(map(read_token, rows)) for side, rows in data["tokens"].items()},
        "words": {side: tuple(map(read_word, rows)) for side, rows in data["words"].items()},
        "stages": tuple(read_stage(one, arrays) for one in data["stages"]),
        "arrays": arrays,
        "candidates": {stack: next_tokens(rows) for stack, rows in data["candidates"].items()},
        "sampled": None if sampled is None else SampledToken(**sampled),
        "ablated": tuple(read_head(text) for text in data["ablated"]),
        "detail": data["detail"],
        "limits": TraceLimits(**limits),
        "check": data["check"],
        "lens": None if lens is None else read_lens(lens),
    }


def next_tokens(rows: Sequence[Sequence[Mapping[str, Any]]]) -> tuple[tuple[NextToken, ...], ...]:
    return tuple(tuple(NextToken(**one) for one in row) for row in rows)


def read_token(values: Mapping[str, Any]) -> TraceToken:
    return TraceToken(**{**values, "span": tuple(values["span"])})


def read_word(values: Mapping[str, Any]) -> Word:
    return Word(values["text"], tuple(values["span"]), tuple(values["tokens"]))


def read_head(text: str) -> HeadName:
    part, layer, head = text.split(".")
    return HeadName(part, int(layer), int(head))


def read_lens(values: Mapping[str, Any]) -> LogitLens:
    top = tuple(next_tokens(rows) for rows in values["top"])
    return LogitLens(values["stack"], tuple(values["positions"]), top)


def read_stage(values: Mapping[str, Any], arrays: Mapping[str, Array]) -> Stage:
    return Stage(
        name=values["name"],
        op=values["op"],
        shape=tuple(values["shape"]),
        axes=tuple(values["axes"]),
        formula=values["formula"],
        inputs=tuple(values["inputs"]),
        stats=values["stats"],
        is_kept=values["name"] in arrays,
    )
