"""`TensorSource`: named tensors of a file, read one at a time; filling a model from them, and back.

A model is built on the meta device; then each weight is read, joined and assigned by itself, so
that the peak memory is the weights and one tensor. A quantized matrix is never float32 where its
module can be packed: its parameter stays on the meta device until the end, when packed modules
adopt the matrices. Missing, unexpected and misshaped tensors are found from names and shapes alone,
before anything is read.

Files are read, not mapped (`FileReader`): mapped pages count as memory of the process beside the
weights made from them, and a file truncated meanwhile would end the process.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from weft.checkpoint.weight_rules import WeightRule, check_tensor_names, raise_problems
from weft.core.errors import DataError
from weft.core.quantized import QuantizedMatrix
from weft.models.build import AnyModel, empty_model
from weft.models.config import ModelConfig
from weft.native.library import native
from weft.native.malloc import trim_malloc
from weft.native.packed import PackedMatrix, pack_quantized
from weft.nn.packed_modules import PackedModule, adopt_matrices, can_pack

FLOATS = frozenset((torch.float64, torch.float32, torch.float16, torch.bfloat16))
FLOAT8 = frozenset(
    (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
)


class TensorSource(Protocol):
    """Tensors by name. `shapes` costs no more than reading the header."""

    @property
    def path(self) -> Path:
        """The file, for messages."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    @property
    def is_mapped(self) -> bool:
        """Whether `read` returns memory of the file or the source, which a model must not keep."""

    def read(self, name: str) -> Tensor: ...


@runtime_checkable
class QuantizedSource(TensorSource, Protocol):
    """A source whose file may have quantized matrices."""

    def read_quantized(self, name: str) -> QuantizedMatrix | None:
        """A quantized matrix; None: only `read` can return this tensor."""


class InMemorySource:
    """Tensors in memory, or mapped."""

    is_mapped = True

    def __init__(self, tensors: Mapping[str, Tensor], path: Path) -> None:
        self.tensors, self.path = tensors, path
        self.shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}

    def read(self, name: str) -> Tensor:
        return self.tensors[name]


class RenamedSource:
    """Another source under other names: {new name: name in the source}."""

    def __init__(self, source: TensorSource, names: Mapping[str, str]) -> None:
        self.source, self.path, self.is_mapped = source, source.path, source.is_mapped
        self.name_of = dict(names)
        self.shapes = {new: source.shapes[old] for new, old in names.items()}

    def read(self, name: str) -> Tensor:
        return self.source.read(self.name_of[name])

    def read_quantized(self, name: str) -> QuantizedMatrix | None:
        if not isinstance(self.source, QuantizedSource):
            return None
        return self.source.read_quantized(self.name_of[name])


class FileReader:
    """Reads ranges of a file, which stays open as long as this object exists."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.handle = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        self.close = weakref.finalize(self, os.close, self.handle)

    def read(self, start: int, count: int, name: str) -> Tensor:
        """`count` bytes from `start` on; a DataError names the tensor in which the file ends."""
        data = torch.empty(count, dtype=torch.uint8)
        view = memoryview(data.numpy().data)
        done = 0
        while done < count:
            num_bytes = os.preadv(self.handle, [view[done:]], start + done)
            if num_bytes == 0:
                raise DataError(f"ends inside tensor {name}. Copy the file again.", self.path)
            done += num_bytes
        return data


def build_from_source(
    config: ModelConfig,
    rules: Sequence[WeightRule],
    source: TensorSource,
    ignored: Sequence[str] = (),
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> AnyModel:
    """A model in eval mode with the weights of `source`. `ignored`: patterns of names in the file
    that no model needs."""
    model = empty_model(config)
    check_names(model, rules, source, ignored)
    names_of = {names[0]: names for names in tied_names(model).values()}
    matrices: dict[int, PackedMatrix] = {}
    for rule in rules:
        names = names_of[rule.target_name]
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


def check_names(
    model: nn.Module, rules: Sequence[WeightRule], source: TensorSource, ignored: Sequence[str]
) -> None:
    """A DataError that names missing, unexpected and misshaped tensors."""
    targets = {rule.target_name for rule in rules}
    parameters = {names[0] for names in tied_names(model).values()}
    differences = sorted(targets ^ parameters)[:5]
    assert not differences, f"rules and model differ: {differences}"
    check_tensor_names(rules, source.shapes, ignored, source.path)
    raise_problems(list(shape_mismatches(model, rules, source)), source.path)


def shape_mismatches(
    model: nn.Module, rules: Sequence[WeightRule], source: TensorSource
) -> Iterable[str]:
    """Tensors of other shapes than the model's, from the rules applied to meta tensors."""
    parameters = dict(model.state_dict(keep_vars=True))
    for rule in rules:
        shapes = {name: tuple(source.shapes[name]) for name in rule.file_names}
        try:
            parts = rule.split(torch.empty(parameters[rule.target_name].shape, device="meta"))
            expected = [tuple(part.shape) for part in parts]
        except RuntimeError:
            expected = []
        if expected != list(shapes.values()):
            actual = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
            yield f"{actual} where config.json implies {', '.join(map(str, expected))}"


def load_weight(
    model: nn.Module,
    names: Sequence[str],
    rule: WeightRule,
    source: TensorSource,
    device: torch.device,
    dtype: torch.dtype,
) -> None:
    """Read and join one weight, and assign it to all of its names."""
    parts = [read_weight(source, name) for name in rule.file_names]
    tensor = rule.join(parts).to(device, dtype).contiguous()
    if source.is_mapped and any(tensor.data_ptr() == part.data_ptr() for part in parts):
        tensor = tensor.clone()
    for name in names:
        path, _, last = name.rpartition(".")
        module = model.get_submodule(path)
        if last in module._parameters and not isinstance(tensor, nn.Parameter):
            tensor = nn.Parameter(tensor)  # tied names share this object
        setattr(module, last, tensor)


def read_weight(source: TensorSource, name: str) -> Tensor:
    """A tensor of floating-point numbers; float8 as float32, since torch does not concatenate it.
    A DataError for integers: quantized in a way that config.json does not mention."""
    tensor = source.read(name)
    if tensor.dtype in FLOAT8:
        return tensor.float()
    if tensor.dtype not in FLOATS:
        dtype = str(tensor.dtype).removeprefix("torch.")
        raise DataError(
            f"'{name}' is stored as {dtype}: weights must be floating-point numbers. Use the "
            "weights without quantization, or a GGUF file of the model.",
            source.path,
        )
    return tensor


def can_pack_quantized(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the native library can multiply by quantized matrices here."""
    return device.type == "cpu" and dtype == torch.float32 and native() is not None


def load_quantized(
    model: nn.Module, names: Sequence[str], rule: WeightRule, source: TensorSource
) -> PackedMatrix | None:
    """The packed matrix of a weight that the file has quantized; None if it has not, or if a
    module of the weight cannot be packed."""
    paths = (name.rpartition(".") for name in names)
    if not isinstance(source, QuantizedSource):
        return None
    if not all(can_pack(model.get_submodule(path), last) for path, _, last in paths):
        return None
    quantized = rule.join_quantized(map(source.read_quantized, rule.file_names))
    return None if quantized is None else pack_quantized(quantized)


def tied_names(model: nn.Module) -> dict[int, list[str]]:
    """All names of each saved parameter and buffer, by identity."""
    names: dict[int, list[str]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        names.setdefault(id(tensor), []).append(name)
    return names


def unique_state(model: nn.Module) -> dict[str, Tensor]:
    """The state dict with tied weights once, under their first name. Weights of packed modules are
    dequantized copies."""
    first = {names[0] for names in tied_names(model).values()}
    state = model.state_dict(keep_vars=True)
    return {name: exact_tensor(model, name, state[name]) for name in state if name in first}


def exact_tensor(model: nn.Module, name: str, tensor: Tensor) -> Tensor:
    """The tensor of this name; of a packed module the dequantized weight."""
    path, _, last = name.rpartition(".")
    module = model.get_submodule(path)
    if isinstance(module, PackedModule) and last in module.packed_names:
        return module.exact(last).detach()
    return tensor.detach()


def split_state(model: nn.Module, rules: Sequence[WeightRule]) -> dict[str, Tensor]:
    """The model's weights under the names of a file: the inverse of `build_from_source`."""
    state = unique_state(model)
    return {
        name: part.detach().cpu().contiguous()
        for rule in rules
        for name, part in zip(rule.file_names, rule.split(state[rule.target_name]), strict=True)
    }
