"""Which tensors a GGUF file will have, of which type, and how each is made when its turn comes.

Hugging Face tensors by name -> a list of `TensorPlan` in the order of the file. Shapes are computed
on meta tensors; no data is copied here.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from weft.checkpoint.gguf.dialect.base import GGUFArchitecture
from weft.checkpoint.gguf.types import TYPES, TensorType
from weft.checkpoint.weight_rules import WeightRule
from weft.core.errors import UsageError

log = logging.getLogger(__name__)

BY_NAME = {kind.name: kind for kind in TYPES.values()}
IN_FULL = ("position_embd.weight", "token_types.weight", "attn_rel_b.weight", "ffn_gate_inp.weight")
"""Ends of the names of tables that llama.cpp adds as they are, and of routers: F32 always."""


@dataclass(frozen=True)
class TensorPlan:
    """A tensor to be written."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    make: Callable[[], Tensor]
    """The tensor itself, in GGUF's order of rows."""


class HFTensors:
    """Hugging Face's tensors, found also where a file leaves off or adds a beginning."""

    def __init__(self, tensors: Mapping[str, Tensor], prefixes: Sequence[str]) -> None:
        self.tensors, self.prefixes = tensors, prefixes
        self.used: set[str] = set()

    def find(self, name: str) -> str:
        """The name under which a tensor is there; a UsageError where it is not."""
        others = [name.removeprefix(p) for p in self.prefixes] + [p + name for p in self.prefixes]
        found = next((n for n in (name, *others) if n in self.tensors), None)
        if found is None:
            raise UsageError(f"tensor {name} is missing. Give all tensors of the model.")
        self.used.add(found)
        return found

    def left(self, ignored: Sequence[str]) -> tuple[list[str], list[str]]:
        """Names that were never asked for: those that may be, and the others."""
        names = [name for name in self.tensors if name not in self.used]
        known = [n for n in names if any(re.fullmatch(pattern, n) for pattern in ignored)]
        return known, [name for name in names if name not in set(known)]


def plan_tensors(
    architecture: GGUFArchitecture,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    extra: Mapping[str, Tensor],
    kind: str,
) -> list[TensorPlan]:
    """All tensors of a file; a UsageError names what is missing or left over."""
    tensors_in = HFTensors(tensors, architecture.prefixes)
    found = [
        TensorPlan(name, tuple(tensor.shape), BY_NAME["F32"], partial(same, tensor))
        for name, tensor in extra.items()
    ]
    for rule in architecture.rules(config):
        found += plan_rule(rule, tensors_in, kind)
    for stack, names in architecture.stacks(config).items():
        found.append(plan_stack(stack, names, tensors_in, kind))
    dropped, unknown = tensors_in.left(architecture.ignored)
    if unknown:
        raise UsageError(
            f"tensor {unknown[0]} (and {len(unknown) - 1} more) has no place in a GGUF file of "
            f"architecture {architecture.name}. Convert to hf instead."
        )
    if dropped:
        log.info("left_out=%s: GGUF has no place for them", ",".join(dropped))
    return found


def same(tensor: Tensor) -> Tensor:
    return tensor


def plan_rule(rule: WeightRule, tensors_in: HFTensors, kind: str) -> Iterator[TensorPlan]:
    name = tensors_in.find(rule.target_name)
    shape = tensors_in.tensors[name].shape
    try:
        parts = rule.split(torch.empty(shape, device="meta"))
    except RuntimeError:
        raise UsageError(
            f"tensor {name} has shape {tuple(shape)}, which does not fit the settings. Use the "
            "settings and tensors of one model."
        ) from None
    for index, (part, theirs) in enumerate(zip(parts, rule.file_names, strict=True)):
        make = partial(make_part, rule, tensors_in, name, index)
        yield TensorPlan(theirs, tuple(part.shape), type_of(theirs, tuple(part.shape), kind), make)


def make_part(rule: WeightRule, tensors_in: HFTensors, name: str, index: int) -> Tensor:
    return rule.split(tensors_in.tensors[name])[index]


def plan_stack(stack: str, names: Sequence[str], tensors_in: HFTensors, kind: str) -> TensorPlan:
    there = [tensors_in.find(name) for name in names]
    shape = (len(there), *tensors_in.tensors[there[0]].shape)
    make = partial(make_stack, tensors_in, there)
    return TensorPlan(stack, shape, type_of(stack, shape, kind), make)


def make_stack(tensors_in: HFTensors, names: Sequence[str]) -> Tensor:
    return torch.stack([tensors_in.tensors[name] for name in names])


def type_of(name: str, shape: tuple[int, ...], kind: str) -> TensorType:
    """Rows and tables that are added stay F32; rows that blocks do not divide become F16."""
    if len(shape) == 1 or name.endswith(IN_FULL):
        return BY_NAME["F32"]
    wanted = BY_NAME[kind.upper()]
    return BY_NAME["F16"] if shape[-1] % wanted.block_len else wanted
