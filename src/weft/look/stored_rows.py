"""Recomputes values that a trace does not keep: stage, head, row -> exact values.

If the trace keeps the inputs of the layers, only the requested layer runs; otherwise all layers up
to it, from the input of the first layer, against the kept K and V. Heads that were ablated in the
trace are ablated here too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from weft.core.errors import UsageError
from weft.look.neighbors import Neighbor, neighbor_units
from weft.look.next_tokens import candidates_of
from weft.look.part_recorder import KEYED, PAIRED, to_array
from weft.look.stack_pass import StackPass
from weft.look.sublayer_stages import (
    attention_of,
    keys_and_values,
    latent_rows,
    projected_keys,
)
from weft.look.taps import Values
from weft.look.trace_data import HEAD_AXES, Array, NextToken, Stage, axis_of
from weft.models.build import AnyModel
from weft.text.tokenizer import Tokenizer

Value = TypeVar("Value")

HOOKED = ("norm", "weights", "heads", "out", "norm_out", "residual")
"""Stages of an attention layer that its hooks give; the others are computed from its input."""
MAX_VALUES = 1 << 26
"""Of one answer: 256 MB."""


@dataclass(frozen=True)
class StoredRows:
    """Runs rows of the passes of one recording again."""

    model: AnyModel
    passes: Mapping[str, StackPass]
    final: Mapping[str, Tensor]
    """Hidden states after the final norm, by stack."""
    tokenizer: Tokenizer
    """Of both sides; `target` is that of the output."""
    unablated: Tensor | None = None
    """The last of those without ablation."""

    def rows(self, stage: Stage, head: int | None, row: int | None) -> Iterator[Array | None]:
        """None after each unit of work, then the values."""
        check_size(stage, head, row)
        yield from in_inference_mode(self.units(stage, head, row))

    def weights(self, part: str, row: int) -> Iterator[Array]:
        """The weights of one query in all heads of a layer, [head, key], layer by layer."""
        yield from in_inference_mode(self.weights_units(part, row))

    def weights_units(self, part: str, row: int) -> Iterator[Array]:
        one = self.passes["decoder" if part == "cross" else part]
        keys = self.passes["encoder"].num_tokens if part == "cross" else one.num_tokens
        name = "cross" if part == "cross" else "attention"
        for values in one.run_rows_of_all_layers(name, slice(row, row + 1)):
            weights_HS = to_array("weights", values["weights"])[:, 0]
            yield np.pad(weights_HS, [(0, 0), (0, keys - weights_HS.shape[1])])

    def next_tokens(
        self, stack: str, x_ND: Array, number: int
    ) -> Iterator[list[tuple[NextToken, ...]]]:
        """The most likely next tokens after hidden states before the final norm."""
        yield from in_inference_mode(self.lens_rows(stack, torch.from_numpy(x_ND), number))

    def lens_rows(
        self, stack: str, x_ND: Tensor, number: int
    ) -> Iterator[list[tuple[NextToken, ...]]]:
        one, head = self.passes[stack], self.model.head
        x_ND = x_ND.to(self.final[stack])
        for part_ND in x_ND.split(one.rows_per_unit(head.weight.numel())):
            logits_NV = head(one.stack.norm(part_ND[None]))[0].float()
            yield candidates_of(logits_NV, self.tokenizer.target, number)

    def neighbors(self, stack: str, token_id: int) -> Iterator[tuple[Neighbor, ...] | None]:
        """The tokens with the most similar embeddings: None after each unit of work, then they."""
        is_source = stack == "encoder" and len(self.passes) > 1
        tokenizer = self.tokenizer if is_source else self.tokenizer.target
        vocab_size = self.model.config.vocab_size_of("encoder" if is_source else "decoder")
        one = self.passes[stack]
        number = torch.tensor(token_id, device=one.batch.ids_BT.device)
        words = one.stack.embedding.words
        yield from in_inference_mode(neighbor_units(words, number, vocab_size, tokenizer))

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in self.passes.values())

    def units(self, stage: Stage, head: int | None, row: int | None) -> Iterator[Array | None]:
        stack, *rest = stage.name.split(".")
        if len(rest) == 1:
            yield from self.logits(stack, rest[0], row)
        elif rest[-1] in KEYED:
            yield from self.keys(stage, head, row)
        else:
            yield from self.joined(stage, head, row)

    def logits(self, stack: str, name: str, row: int | None) -> Iterator[Array | None]:
        """Logits, or their change by ablation, of one or all positions."""
        one = self.passes[stack]
        rows = slice(0, one.num_tokens) if row is None else slice(row, row + 1)
        size = one.rows_per_unit(self.model.head.weight.numel())
        parts: list[Tensor] = []
        for start in range(rows.start, rows.stop, size):
            part = slice(start, min(start + size, rows.stop))
            logits_NV = self.model.head(self.final[stack][:, part])[0].float()
            if name == "logits_delta":
                assert self.unablated is not None, "a change of logits without ablation"
                logits_NV = logits_NV - self.model.head(self.unablated[:, part])[0].float()
            parts.append(logits_NV)
            yield None
        values: Array = torch.cat(parts).cpu().numpy()
        yield values if row is None else values[0]

    def keys(self, stage: Stage, head: int | None, row: int | None) -> Iterator[Array | None]:
        """Stages with a row per key: from the kept rows; k_projected from the layer's input."""
        stack, number, part, name = stage.name.split(".")
        one = self.passes[stack]
        layer, _ = attention_of(one.stack.layers[int(number)], part)
        if name == "k_projected" and part != "cross":
            yield from self.joined(stage, head, row)
            return
        kv = one.rows_of_keys(layer)
        values = latent_rows(layer, kv)
        values["k"], values["v"] = keys_and_values(layer, kv)
        memory_1SD = one.full.memory_BSD
        if memory_1SD is not None:
            values |= projected_keys(layer, memory_1SD, one.full)
        yield part_of(to_array(name, values[name]), stage, head, row)

    def joined(self, stage: Stage, head: int | None, row: int | None) -> Iterator[Array | None]:
        """Stages with a row per token, block by block."""
        one = self.passes[stage.name.split(".")[0]]
        T = one.num_tokens if row is None else 1
        first = 0 if row is None else row
        size = max(1, min(one.rows_per_unit(one.num_weights_per_row), T))
        parts: list[Array] = []
        for start in range(first, first + T, size):
            rows = slice(start, min(start + size, first + T))
            for unit in self.block(stage, rows):
                if unit is None:
                    yield None
                else:
                    parts.append(part_of(unit, stage, head, None))
        axis = row_axis(stage, head)
        values = np.concatenate(padded(parts, stage), axis=axis)
        yield values if row is None else np.take(values, [0], axis=axis).squeeze(axis)

    def block(self, stage: Stage, rows: slice) -> Iterator[Array | None]:
        """The values of some rows, all heads."""
        stack, number, *rest = stage.name.split(".")
        layer, name = int(number), rest[-1]
        one, part = self.passes[stack], rest[0] if len(rest) == 2 else "feedforward"
        has_weights = name == "weights"
        for unit in one.run_rows(layer, part, rows, has_weights):
            if unit is None:
                yield None
                continue
            y_1TD, values = unit
            if name == "output":
                values = {"output": y_1TD}
            elif part != "feedforward" and name not in HOOKED:
                values = self.explicit(one, layer, part, rows, values)
            yield to_array(name, values[name])

    def explicit(
        self, one: StackPass, layer: int, part: str, rows: slice, values: Values
    ) -> Values:
        """q, scores and mask of some rows."""
        block = one.stack.layers[layer]
        attention, _ = attention_of(block, part)
        keys = projected_keys(attention, values["input"], one.context(block, rows))
        return one.explicit(layer, part, values["input"], rows) | keys


def check_size(stage: Stage, head: int | None, row: int | None) -> None:
    """Raise a UsageError for more values than one answer may have."""
    size = 1
    for axis, number in zip(stage.axes, stage.shape, strict=True):
        is_one = (axis in HEAD_AXES and head is not None) or (
            axis in ("query", "token") and row is not None
        )
        size *= 1 if is_one else number
    if size > MAX_VALUES:
        raise UsageError(
            f"{stage.name} has {size:,} values, at most {MAX_VALUES:,} are computed at once. Ask "
            "for one head or one row."
        )


def row_axis(stage: Stage, head: int | None) -> int:
    """The dimension of queries or tokens, after a head was selected."""
    axis = next(i for i, name in enumerate(stage.axes) if name in ("query", "token", "key"))
    is_behind = head is not None and axis_of(stage.axes, HEAD_AXES) is not None
    return axis - 1 if is_behind else axis


def part_of(values: Array, stage: Stage, head: int | None, row: int | None) -> Array:
    """One head, and one row, of the values of a stage."""
    if row is not None:
        values = np.take(values, [row], axis=row_axis(stage, None)).squeeze(row_axis(stage, None))
    axis = axis_of(stage.axes, HEAD_AXES)
    return values if head is None or axis is None else values[head]


def padded(parts: list[Array], stage: Stage) -> list[Array]:
    """Rows of weights with zeros for the keys that come after their block."""
    if stage.name.rsplit(".", 1)[-1] not in PAIRED:
        return parts
    keys = stage.shape[-1]
    return [
        np.pad(part, [(0, 0)] * (part.ndim - 1) + [(0, keys - part.shape[-1])]) for part in parts
    ]


@torch.inference_mode()
def in_inference_mode(units: Iterator[Value]) -> Iterator[Value]:
    """Each unit in inference mode; the decorator leaves it between units."""
    yield from units
