"""How the weights of a model are stored: number formats, bytes on disk and in memory, from headers.

    format     numbers            in memory, on a CPU in float32
    Q4_1       126,992,384        stay quantized where the native kernels can multiply by them
    F32         61,632            the same

Works without torch, for `weft info`. Pickled weights, including those of fairseq, have no formats
here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

from weft.checkpoint.atomic import current_folder
from weft.checkpoint.description import format_of
from weft.checkpoint.folder_files import MODEL_FILES, RUN_FILE
from weft.checkpoint.gguf.header import read_header
from weft.checkpoint.gguf.hf_names import VOCABULARY
from weft.checkpoint.gguf.loaded_size import loaded_size
from weft.checkpoint.pulled_models import resolve
from weft.checkpoint.run_files import CHECKPOINTS, WEIGHTS, checkpoint_folder
from weft.checkpoint.run_selection import candidate_steps, split_run_path
from weft.checkpoint.safetensors_header import (
    SafetensorsHeader,
    open_file,
    open_safetensors_header,
)
from weft.checkpoint.sha256sums import files_of
from weft.models.cost import DTYPE_BYTES, Cost
from weft.native.compiler import has_library

FLOATS = ("F32", "F16", "BF16", "F64", "F8_E4M3", "F8_E5M2")
"""Formats that are not quantized, by their names in GGUF and safetensors files."""


@dataclass(frozen=True)
class StoredSize:
    """Formats and sizes of one model."""

    formats: dict[str, int]
    """{format: numbers}, the most frequent first."""
    disk_bytes: int
    """Bytes of all files of the model."""
    memory_bytes: int
    """Bytes of the loaded weights."""

    @property
    def quantization(self) -> str | None:
        """The most frequent format, if it is quantized."""
        first = next(iter(self.formats), "F32")
        return None if first in FLOATS else first

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "quantization": self.quantization}

    def describe(self) -> str:
        """'Q4_1 99.9 %, F32 0.1 %'."""
        total = max(1, sum(self.formats.values()))
        return ", ".join(f"{name} {100 * n / total:.3g} %" for name, n in self.formats.items())


def stored_size(model: str | Path, cost: Cost) -> StoredSize:
    """The sizes of a model whose `cost` is known."""
    path = resolve(model)
    name = format_of(path)
    if name == "gguf":
        return gguf_size(path, cost)
    if name == "run":
        run_path = split_run_path(path)
        step = candidate_steps(run_path)[0]
        weights = checkpoint_folder(run_path.run / CHECKPOINTS, step) / WEIGHTS
        checkpoint = SafetensorsHeader(weights, {weights: open_file(weights)})
        return StoredSize(formats_of(checkpoint), weights.stat().st_size, cost.weight_bytes)
    folder = current_folder(path)
    header = open_safetensors_header(folder)
    formats = formats_of(header) if header else {}
    return StoredSize(formats, model_bytes(folder), cost.weight_bytes)


def gguf_size(path: Path, cost: Cost) -> StoredSize:
    """Formats and sizes of a GGUF file, whose matrices may stay quantized in memory."""
    header = read_header(path, skipped=VOCABULARY)
    infos = header.tensors.values()
    formats = most_frequent((info.type.name, info.shape) for info in infos)
    can_pack = cost.dtype == "float32" and has_library()
    memory, _ = loaded_size(path, DTYPE_BYTES[cost.dtype], can_pack)
    return StoredSize(formats, path.stat().st_size, memory)


def formats_of(header: SafetensorsHeader) -> dict[str, int]:
    return most_frequent((header.dtypes[name], shape) for name, shape in header.shapes.items())


def most_frequent(tensors: Iterable[tuple[str, tuple[int, ...]]]) -> dict[str, int]:
    """{format: numbers} of tensors given as (format, shape)."""
    counts: Counter[str] = Counter()
    for name, shape in tensors:
        counts[name] += prod(shape)
    return dict(counts.most_common())


def model_bytes(folder: Path) -> int:
    """Bytes of the files of a model folder; a run has others beside them."""
    if (folder / RUN_FILE).is_file():
        files = [folder / name for name in MODEL_FILES]
        return sum(file.stat().st_size for file in files if file.is_file())
    return sum(file.stat().st_size for file in files_of(folder))
