"""Names and transforms between the weights of a model and the tensors of a file, in both
directions.

    same("decoder.norm.weight", "model.norm.weight")
    stacked("decoder.blocks.0.attention.qkv.weight", ("...q_proj.weight", ...), (576, 192, 192))

A rule describes one target tensor and the tensors of the file that it consists of. `join` builds
the target from the file's tensors, `split` is the inverse; a family is a list of rules, so that
import and export use the same lines. Rules between Weft and Hugging Face have Weft names as
targets; rules between Hugging Face and GGUF have Hugging Face names. Rules that only permute or
concatenate rows apply to quantized matrices as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
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
    """Shape of the target from those of the file's tensors. None: from `join` applied to meta
    tensors, which must not compute: arithmetic on meta tensors imports torch's compiler."""

    def target_shape(self, shapes: list[Shape]) -> Shape:
        """Shape of the target. Raises a RuntimeError, IndexError or ValueError if the tensors do
        not match."""
        if self.shape is not None:
            return self.shape(shapes)
        return tuple(self.join([torch.empty(shape, device="meta") for shape in shapes]).shape)

    def join_quantized(self, parts: Iterable[QuantizedMatrix | None]) -> QuantizedMatrix | None:
        """`join` for quantized matrices; None if one is not quantized or their types differ."""
        parts = list(parts)
        matrices = [part for part in parts if part is not None]
        kinds = {matrix.kind for matrix in matrices}
        if not self.permutes_rows or len(matrices) != len(parts) or len(kinds) != 1:
            return None
        minima = [matrix.minima for matrix in matrices if matrix.minima is not None]
        return QuantizedMatrix(
            self.join([matrix.words for matrix in matrices]),
            self.join([matrix.scales for matrix in matrices]),
            self.join(minima) if minima else None,
        )


def same(target: str, file: str) -> WeightRule:
    """The same tensor under another name."""
    return WeightRule(
        target, (file,), lambda parts: parts[0], lambda whole: [whole], permutes_rows=True
    )


def transposed(target: str, file: str) -> WeightRule:
    """A matrix that the file stores as [in, out] (GPT-2)."""
    return WeightRule(target, (file,), lambda parts: parts[0].T, lambda whole: [whole.T])


def stacked(target: str, files: Sequence[str], sizes: Sequence[int]) -> WeightRule:
    """Several tensors of the file concatenated along their rows; `sizes`: rows of each."""
    rows = list(sizes)
    return WeightRule(
        target, tuple(files), torch.cat, lambda whole: list(whole.split(rows)), permutes_rows=True
    )


def converted(
    target: str,
    file: str,
    from_file: Callable[[Tensor], Tensor],
    to_file: Callable[[Tensor], Tensor],
    permutes_rows: bool = False,
    keeps_shape: bool = False,
) -> WeightRule:
    """One tensor with a function for each direction."""
    return WeightRule(
        target,
        (file,),
        lambda parts: from_file(parts[0]),
        lambda whole: [to_file(whole)],
        permutes_rows,
        shape=(lambda shapes: shapes[0]) if keeps_shape else None,
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
