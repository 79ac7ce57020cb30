"""`Translated`: the tensors of a GGUF file under Hugging Face's names, in its shapes and order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from weft.checkpoint.gguf.tensors import GGUFSource
from weft.checkpoint.rules import Rule
from weft.core.errors import DataError
from weft.core.quantized import QuantizedMatrix


class Translated:
    """Implements `TensorSource`. A tensor that no rule names keeps its own name, so that whoever
    fills a model sees what is left over; what is missing is missing."""

    is_mapped = False

    def __init__(
        self,
        source: GGUFSource,
        rules: Sequence[Rule],
        stacks: Mapping[str, Sequence[str]] | None = None,
        unread: Sequence[str] = (),
    ) -> None:
        self.source, self.path = source, source.path
        there = [rule for rule in rules if all(name in source.shapes for name in rule.theirs)]
        self.rules = {rule.ours: rule for rule in there}
        self.places = {
            name: (stack, index)
            for stack, names in (stacks or {}).items()
            for index, name in enumerate(names)
            if index < source.shapes.get(stack, (0,))[0]
        }
        """Tensors that are a part of a larger one, and where in it."""
        used = {name for rule in there for name in rule.theirs} | set(stacks or ()) | set(unread)
        left = {name: shape for name, shape in source.shapes.items() if name not in used}
        self.shapes: Mapping[str, tuple[int, ...]] = {
            **{name: self.shape_of(rule) for name, rule in self.rules.items()},
            **{name: source.shapes[stack][1:] for name, (stack, _) in self.places.items()},
            **left,
        }

    def shape_of(self, rule: Rule) -> tuple[int, ...]:
        """From the shapes in the file, by the rule itself on tensors without memory."""
        parts = [torch.empty(self.source.shapes[name], device="meta") for name in rule.theirs]
        try:
            return tuple(rule.join(parts).shape)
        except RuntimeError:
            shapes = ", ".join(f"{name} {self.source.shapes[name]}" for name in rule.theirs)
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
        parts = [self.source.read(part) for part in rule.theirs]
        return self.source.pool.submit(rule.join, parts).result()

    def read_few(self, name: str) -> QuantizedMatrix | None:
        """A matrix in few bits; None where the file or its rule has it otherwise."""
        if name in self.places:
            return self.source.read_few_part(*self.places[name])
        rule = self.rules.get(name)
        return rule.join_few(map(self.source.read_few, rule.theirs)) if rule else None
