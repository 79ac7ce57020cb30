"""`GGUFAsHFSource`: the tensors of a GGUF file under Hugging Face names, shapes and row order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from weft.checkpoint.gguf.tensors import GGUFSource
from weft.checkpoint.weight_rules import WeightRule
from weft.core.errors import DataError
from weft.core.quantized import QuantizedMatrix


class GGUFAsHFSource:
    """Implements `TensorSource`. A tensor that no rule names keeps its own name, so that whoever
    fills a model sees what is left over; what is missing is missing."""

    is_mapped = False

    def __init__(
        self,
        source: GGUFSource,
        rules: Sequence[WeightRule],
        stacks: Mapping[str, Sequence[str]] | None = None,
        unread: Sequence[str] = (),
    ) -> None:
        self.source, self.path = source, source.path
        there = [rule for rule in rules if all(name in source.shapes for name in rule.file_names)]
        self.rules = {rule.target_name: rule for rule in there}
        self.places = {
            name: (stack, index)
            for stack, names in (stacks or {}).items()
            for index, name in enumerate(names)
            if index < source.shapes.get(stack, (0,))[0]
        }
        """Tensors that are a part of a larger one, and where in it."""
        used = (
            {name for rule in there for name in rule.file_names} | set(stacks or ()) | set(unread)
        )
        left = {name: shape for name, shape in source.shapes.items() if name not in used}
        self.shapes: Mapping[str, tuple[int, ...]] = {
            **{name: self.shape_of(rule) for name, rule in self.rules.items()},
            **{name: source.shapes[stack][1:] for name, (stack, _) in self.places.items()},
            **left,
        }

    def shape_of(self, rule: WeightRule) -> tuple[int, ...]:
        """From the shapes in the file, by the rule itself on tensors without memory."""
        parts = [torch.empty(self.source.shapes[name], device="meta") for name in rule.file_names]
        try:
            return tuple(rule.join(parts).shape)
        except RuntimeError:
            shapes = ", ".join(f"{name} {self.source.shapes[name]}" for name in rule.file_names)
            raise DataError(
                f"{shapes} does not fit its metadata (heads or sizes). Use another file.",
                self.path,
            ) from None

    def read(self, name: str) -> Tensor:
        """A tensor as float32 in memory of its own."""
        if name in self.places:
            return self.source.read_part(*self.places[name])
        rule = self.rules.get(name)
        if rule is None:
            return self.source.read(name)
        parts = [self.source.read(part) for part in rule.file_names]
        return self.source.pool.submit(rule.join, parts).result()

    def read_quantized(self, name: str) -> QuantizedMatrix | None:
        """A matrix in few bits; None where the file or its rule has it otherwise."""
        if name in self.places:
            return self.source.read_quantized_part(*self.places[name])
        rule = self.rules.get(name)
        return (
            rule.join_quantized(map(self.source.read_quantized, rule.file_names)) if rule else None
        )
