"""`TensorSource`: named tensors in a file, read one at a time; and how a model is filled from them.

The model is built without memory and each of its weights is read, joined and put in place by
itself, so that the peak is the weights and the one tensor at hand. A quantized matrix is never
float32 where its module can be packed: its parameter stays on the meta device until the end, when
packed modules take the matrices over. What is missing, left over or of another shape is found from
the names and shapes alone, before anything is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from weft.checkpoint.state import owners
from weft.checkpoint.weight_rules import WeightRule, names_in_file
from weft.core.errors import DataError
from weft.core.quantized import QuantizedMatrix
from weft.models.build import Model, build_model
from weft.models.config import ModelConfig
from weft.native.library import native
from weft.native.malloc import trim_malloc
from weft.native.packed import PackedMatrix, pack_quantized
from weft.nn.packed_modules import adopt_matrices, can_pack


class TensorSource(Protocol):
    """Tensors by name. `shapes` costs no more than the header."""

    @property
    def path(self) -> Path:
        """What messages name."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    @property
    def is_mapped(self) -> bool:
        """Whether `read` gives the file's own memory, which a model must not keep."""

    def read(self, name: str) -> Tensor: ...


@runtime_checkable
class QuantizedSource(TensorSource, Protocol):
    """A source whose file may have matrices in few bits."""

    def read_quantized(self, name: str) -> QuantizedMatrix | None:
        """A matrix in few bits; None: it is to be had by `read` alone."""


class InMemorySource:
    """Tensors that are there already."""

    is_mapped = True

    def __init__(self, tensors: Mapping[str, Tensor], path: Path) -> None:
        self.tensors, self.path = tensors, path
        self.shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}

    def read(self, name: str) -> Tensor:
        return self.tensors[name]


class RenamedSource:
    """Another source with the names of some other layout: {new name: name in the source}."""

    def __init__(self, source: TensorSource, names: Mapping[str, str]) -> None:
        self.source, self.path, self.is_mapped = source, source.path, source.is_mapped
        self.name_of = dict(names)
        self.shapes = {new: source.shapes[old] for new, old in names.items()}

    def read(self, name: str) -> Tensor:
        return self.source.read(self.name_of[name])

    def read_quantized(self, name: str) -> QuantizedMatrix | None:
        source = self.source
        return (
            source.read_quantized(self.name_of[name])
            if isinstance(source, QuantizedSource)
            else None
        )


def build_from_source(
    config: ModelConfig,
    rules: Sequence[WeightRule],
    source: TensorSource,
    ignored: Sequence[str] = (),
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Model:
    """A model in eval mode with the weights of `source`. `ignored`: patterns of names in the file
    that no model needs."""
    model = empty_model(config)
    check_names(model, rules, source, ignored)
    places = {names[0]: names for names in owners(model).values()}
    matrices: dict[int, PackedMatrix] = {}
    for rule in rules:
        names = places[rule.target_name]
        matrix = None
        if can_pack_quantized(torch.device(device), dtype):
            matrix = load_quantized(model, names, rule, source)
        if matrix is None:
            load_weight(model, names, rule, source, torch.device(device), dtype)
        else:
            matrices[id(model.get_parameter(names[0]))] = matrix
    adopt_matrices(model, matrices)
    trim_malloc()
    return model.eval()


def empty_model(config: ModelConfig) -> Model:
    """A model without memory, to be filled."""
    with torch.device("meta"), SkipInit():
        return build_model(config)


class SkipInit(TorchFunctionMode):
    """Layers are made without first values: on a tensor without memory, drawing these imports
    torch's compiler, which takes more than a second and 100 MB."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def check_names(
    model: nn.Module, rules: Sequence[WeightRule], source: TensorSource, ignored: Sequence[str]
) -> None:
    """A DataError that names what does not fit, before anything is read."""
    ours = {rule.target_name for rule in rules}
    wanted = {name for names in owners(model).values() for name in names[:1]}
    assert ours == wanted, f"rules and model differ: {sorted(ours ^ wanted)[:5]}"
    theirs = names_in_file(rules)
    wrong = [f"{name} is missing" for name in sorted(theirs - source.shapes.keys())]
    surplus = [name for name in source.shapes if name not in theirs]
    unknown = [n for n in surplus if not any(re.fullmatch(p, n) for p in ignored)]
    wrong += [f"{name} is not part of this model" for name in unknown]
    refuse(wrong, source.path)
    refuse(shape_mismatches(model, rules, source), source.path)


def shape_mismatches(
    model: nn.Module, rules: Sequence[WeightRule], source: TensorSource
) -> Iterable[str]:
    """Rules run on tensors without memory, so that shapes are compared without reading."""
    parameters = dict(model.state_dict(keep_vars=True))
    for rule in rules:
        given = [torch.empty(source.shapes[name], device="meta") for name in rule.file_names]
        shapes = ", ".join(
            f"{name} {tuple(t.shape)}" for name, t in zip(rule.file_names, given, strict=True)
        )
        expected = tuple(parameters[rule.target_name].shape)
        try:
            parts = rule.split(torch.empty(expected, device="meta"))
            allowed = [tuple(part.shape) for part in parts]
        except RuntimeError:
            allowed = []
        if allowed != [tuple(part.shape) for part in given]:
            told = ", ".join(str(shape) for shape in allowed)
            yield f"{shapes} where config.json makes it {told}"


def refuse(wrong: Iterable[str], path: Path) -> None:
    found = list(wrong)
    if found:
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        raise DataError(
            f"does not fit its settings: {'; '.join(found[:3])}{more}. Use the files of one model.",
            path,
        )


def load_weight(
    model: nn.Module,
    names: Sequence[str],
    rule: WeightRule,
    source: TensorSource,
    device: torch.device,
    dtype: torch.dtype,
) -> None:
    """Read, join and put one weight in all of its places."""
    parts = [source.read(name) for name in rule.file_names]
    tensor = rule.join(parts)
    tensor = tensor.to(device, dtype if tensor.is_floating_point() else None).contiguous()
    if source.is_mapped and any(tensor.data_ptr() == part.data_ptr() for part in parts):
        tensor = tensor.clone()
    for name in names:
        path, _, last = name.rpartition(".")
        owner = model.get_submodule(path)
        is_weight = last in owner._parameters
        if is_weight and not tensor.is_floating_point():
            raise not_floating_point(rule.file_names[0], tensor, source.path)
        new = tensor if not is_weight or isinstance(tensor, nn.Parameter) else nn.Parameter(tensor)
        setattr(owner, last, new)
        tensor = new  # all places share one


def not_floating_point(name: str, tensor: Tensor, path: Path) -> DataError:
    """Whole numbers in the place of weights: packed in a way that the settings do not tell."""
    kind = str(tensor.dtype).removeprefix("torch.")
    return DataError(
        f"'{name}' is stored as {kind}: weights must be floating-point numbers. Use the unpacked "
        "weights, or a GGUF file of the model.",
        path,
    )


def can_pack_quantized(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether there is a product that takes weights in few bits: the library's."""
    return device.type == "cpu" and dtype == torch.float32 and native() is not None


def load_quantized(
    model: nn.Module, names: Sequence[str], rule: WeightRule, source: TensorSource
) -> PackedMatrix | None:
    """The matrix of a weight that the file has quantized; None where it has not, or where a module
    that has the weight cannot multiply by it."""
    paths = (name.rpartition(".") for name in names)
    if not isinstance(source, QuantizedSource):
        return None
    if not all(can_pack(model.get_submodule(path), last) for path, _, last in paths):
        return None
    quantized = rule.join_quantized(map(source.read_quantized, rule.file_names))
    return None if quantized is None else pack_quantized(quantized)
