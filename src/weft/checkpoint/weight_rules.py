"""Names and transforms between the weights of a model and the tensors of a file, in both
directions.

    same("decoder.norm.weight", "model.norm.weight")
    stacked("decoder.blocks.0.attention.qkv.weight", ("...q_proj.weight", ...), (576, 192, 192))

A rule describes one target tensor and the tensors of the file that it consists of. `join` builds
the target from the file's tensors, `split` is the inverse; a family is a list of rules, so that
import and export use the same lines. Rules between Weft and Hugging Face have Weft names as
targets; rules between Hugging Face and GGUF have Hugging Face names. Rules that only permute or
concatenate rows apply to quantized matrices as well.

Rules are made without torch: `weft info` compares names and shapes only (hf_header.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from weft.core.errors import MAX_QUOTED, DataError

if TYPE_CHECKING:
    from torch import Tensor

    from weft.core.quantized import QuantizedMatrix

Shape = tuple[int, ...]


@dataclass(frozen=True)
class WeightRule:
    """One target tensor and the tensors of the file it consists of."""

    target_name: str
    file_names: tuple[str, ...]
    join: Callable[[list[Tensor]], Tensor]
    split: Callable[[Tensor], list[Tensor]]
    permutes_rows: bool = False
    """Whether `join` only permutes or concatenates rows."""
    shape: Callable[[list[Shape]], Shape] | None = None
    """Shape of the target from those of the file's tensors; a ValueError if they do not match.
    None: not known without the tensors. The rules between Hugging Face and GGUF have one."""

    def join_quantized(self, parts: Iterable[QuantizedMatrix | None]) -> QuantizedMatrix | None:
        """`join` for quantized matrices; None if one is not quantized or their types differ."""
        parts = list(parts)
        matrices = [part for part in parts if part is not None]
        kinds = {matrix.kind for matrix in matrices}
        if not self.permutes_rows or len(matrices) != len(parts) or len(kinds) != 1:
            return None
        minima = [matrix.minima for matrix in matrices if matrix.minima is not None]
        return replace(
            matrices[0],
            words=self.join([matrix.words for matrix in matrices]),
            scales=self.join([matrix.scales for matrix in matrices]),
            minima=self.join(minima) if minima else None,
        )


def same(target: str, file: str) -> WeightRule:
    """The same tensor under another name."""
    return WeightRule(
        target, (file,), lambda parts: parts[0], lambda whole: [whole], True, same_shape
    )


def same_shape(shapes: list[Shape]) -> Shape:
    return shapes[0]


def transposed(target: str, file: str) -> WeightRule:
    """A matrix that the file stores as [in, out] (GPT-2)."""
    return WeightRule(
        target,
        (file,),
        lambda parts: parts[0].T,
        lambda whole: [whole.T],
        shape=lambda shapes: shapes[0][::-1],
    )


def stacked(target: str, files: Sequence[str], sizes: Sequence[int]) -> WeightRule:
    """Several tensors of the file concatenated along their rows; `sizes`: rows of each."""
    rows = list(sizes)
    return WeightRule(
        target,
        tuple(files),
        concatenate,
        lambda whole: list(whole.split(rows)),
        permutes_rows=True,
        shape=stacked_shape,
    )


def stacked_shape(shapes: list[Shape]) -> Shape:
    """A ValueError unless all but the rows agree."""
    if any(shape[1:] != shapes[0][1:] for shape in shapes):
        raise ValueError(f"{shapes} differ in more than their rows")
    return sum(shape[0] for shape in shapes), *shapes[0][1:]


def indexed(target: str, files: Sequence[str]) -> WeightRule:
    """Several tensors of the file as the entries of a new first dimension."""
    return WeightRule(
        target,
        tuple(files),
        lambda parts: concatenate([part[None] for part in parts]),
        lambda whole: list(whole.unbind()),
        permutes_rows=True,
    )


def stacked_by_index(target: str, files: Sequence[str], count: int, rows: int) -> WeightRule:
    """The same with several tensors of `rows` rows for each of `count` entries, concatenated."""
    return WeightRule(
        target,
        tuple(files),
        lambda parts: concatenate(parts).unflatten(0, (count, -1)),
        lambda whole: list(whole.flatten(0, 1).split(rows)),
        permutes_rows=True,
    )


def concatenate(parts: list[Tensor], dim: int = 0) -> Tensor:
    from torch import cat  # rules are made without torch

    return cat(parts, dim)


def converted(
    target: str,
    file: str,
    from_file: Callable[[Tensor], Tensor],
    to_file: Callable[[Tensor], Tensor],
    permutes_rows: bool = False,
    shape: Callable[[list[Shape]], Shape] | None = None,
) -> WeightRule:
    """One tensor with a function for each direction."""
    return WeightRule(
        target,
        (file,),
        lambda parts: from_file(parts[0]),
        lambda whole: [to_file(whole)],
        permutes_rows,
        shape,
    )


def layer(target: str, file: str, bias: bool = False) -> list[WeightRule]:
    """Weight and, optionally, bias of a layer."""
    parts = ("weight", "bias") if bias else ("weight",)
    return [same(f"{target}.{part}", f"{file}.{part}") for part in parts]


def layers(target: str, file: str, names: dict[str, str], bias: bool = False) -> list[WeightRule]:
    """Layers below two prefixes, from a table {name of the target: name in the file}."""
    return [
        rule
        for name, file_name in names.items()
        for rule in layer(f"{target}.{name}", f"{file}.{file_name}", bias)
    ]


def stacked_layers(
    target: str, files: Sequence[str], sizes: Sequence[int], bias: bool = False
) -> list[WeightRule]:
    """Several layers of the file that are one of the target: q, k and v; gate and up."""
    parts = ("weight", "bias") if bias else ("weight",)
    return [
        stacked(f"{target}.{part}", [f"{name}.{part}" for name in files], sizes) for part in parts
    ]


def names_in_file(rules: Iterable[WeightRule]) -> set[str]:
    return {name for rule in rules for name in rule.file_names}


def check_tensor_names(
    rules: Iterable[WeightRule], names: Collection[str], ignored: Sequence[str], path: Path
) -> None:
    """A DataError that names missing and unexpected tensors. Needs no model, which takes long to
    build if the settings claim thousands of layers."""
    expected = names_in_file(rules)
    problems = [f"{name} is missing" for name in sorted(expected.difference(names))]
    surplus = [name for name in names if name not in expected]
    unknown = [n for n in surplus if not any(re.fullmatch(p, n) for p in ignored)]
    problems += [f"{name} is not part of this model" for name in unknown]
    raise_problems(problems, path)


def raise_problems(problems: Sequence[str], path: Path) -> None:
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        first = "; ".join(problem[:MAX_QUOTED] for problem in problems[:3])
        raise DataError(
            f"does not match its settings: {first}{more}. Use the files of one model.",
            path,
        )
