"""Names and transforms between our weights and another project's, read in both directions.

    same("decoder.norm.weight", "model.norm.weight")
    stacked("decoder.blocks.0.attention.qkv.weight", ("...q_proj.weight", ...), (576, 192, 192))

A rule stands for one of our tensors and the one or more of theirs that it is made of. `join` makes
ours from theirs, `split` theirs from ours; a family is a list of rules, so what was imported is
exported by the same lines. Rules that only move whole rows do so with the words and scales of a
matrix in few bits as with its numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.core.quantized import QuantizedMatrix


@dataclass(frozen=True)
class WeightRule:
    """One of our tensors and theirs."""

    target_name: str
    file_names: tuple[str, ...]
    join: Callable[[list[Tensor]], Tensor]
    split: Callable[[Tensor], list[Tensor]]
    permutes_rows: bool = False
    """Whether `join` leaves every row as it is, and may but put them in another order."""

    def join_quantized(self, parts: Iterable[QuantizedMatrix | None]) -> QuantizedMatrix | None:
        """`join` for matrices in few bits; None where one is not, or they are not of one kind."""
        given = list(parts)
        found = [part for part in given if part is not None]
        if not self.permutes_rows or found != given or len({part.kind for part in found}) != 1:
            return None
        minima = [part.minima for part in found if part.minima is not None]
        return QuantizedMatrix(
            self.join([part.words for part in found]),
            self.join([part.scales for part in found]),
            self.join(minima) if minima else None,
        )


def same(ours: str, theirs: str) -> WeightRule:
    """The same tensor under another name."""
    return WeightRule(
        ours, (theirs,), lambda parts: parts[0], lambda whole: [whole], permutes_rows=True
    )


def transposed(ours: str, theirs: str) -> WeightRule:
    """A matrix that they keep as [in, out] (GPT-2)."""
    return WeightRule(ours, (theirs,), lambda parts: parts[0].T, lambda whole: [whole.T])


def stacked(ours: str, theirs: Sequence[str], sizes: Sequence[int]) -> WeightRule:
    """Several of theirs one below the other in ours; `sizes` are their numbers of rows."""
    rows = list(sizes)
    return WeightRule(
        ours, tuple(theirs), torch.cat, lambda whole: list(whole.split(rows)), permutes_rows=True
    )


def changed(
    ours: str,
    theirs: str,
    from_file: Callable[[Tensor], Tensor],
    to_file: Callable[[Tensor], Tensor],
    permutes_rows: bool = False,
) -> WeightRule:
    """One tensor, with a change of its own in each direction."""
    return WeightRule(
        ours,
        (theirs,),
        lambda parts: from_file(parts[0]),
        lambda whole: [to_file(whole)],
        permutes_rows,
    )


def layer(ours: str, theirs: str, bias: bool = False) -> list[WeightRule]:
    """Weight and, where there is one, bias of a layer."""
    parts = ("weight", "bias") if bias else ("weight",)
    return [same(f"{ours}.{part}", f"{theirs}.{part}") for part in parts]


def stacked_layers(
    ours: str, theirs: Sequence[str], sizes: Sequence[int], bias: bool = False
) -> list[WeightRule]:
    """Several layers that are one of ours: q, k and v; gate and up."""
    parts = ("weight", "bias") if bias else ("weight",)
    return [
        stacked(f"{ours}.{part}", [f"{name}.{part}" for name in theirs], sizes) for part in parts
    ]


def names_in_file(rules: Iterable[WeightRule]) -> set[str]:
    return {name for rule in rules for name in rule.file_names}
