"""The `gguf` library's part: rare block types, quantising, and writing files.

The one file that imports it, and imported only where it is needed (see dequantise.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf.constants import GGML_QUANT_VERSION, GGMLQuantizationType
from gguf.gguf_writer import GGUFWriter
from gguf.quants import dequantize, quantize
from torch import Tensor

from weft.checkpoint.gguf.plan import TensorPlan
from weft.checkpoint.gguf.types import TensorType
from weft.core.errors import UsageError

MAX_F16 = float(np.finfo(np.float16).max)


def dequantize_with_library(kind: TensorType, blocks: Tensor) -> Tensor:
    """Blocks as bytes [n, block_bytes] -> numbers [n, block_len]."""
    # one long row: the library loops over rows
    rows = blocks.numpy().reshape(1, -1)
    numbers = dequantize(rows, GGMLQuantizationType(kind.number))
    return torch.from_numpy(numbers).view(-1, kind.block_len)


def quantize_with_library(kind: TensorType, tensor: Tensor) -> np.ndarray[Any, Any]:
    """A tensor of any float type -> rows of numbers or of bytes."""
    numbers = tensor.detach().to("cpu", torch.float32).contiguous().numpy()
    return quantize(numbers, GGMLQuantizationType(kind.number))


def write_file(path: Path, metadata: Mapping[str, Any], planned: Sequence[TensorPlan]) -> None:
    """A whole GGUF file; each tensor is made when it is written and let go after."""
    writer = GGUFWriter(path, str(metadata["general.architecture"]))
    try:
        writer.add_quantization_version(GGML_QUANT_VERSION)
        for key, value in metadata.items():
            if key != "general.architecture":
                add_value(writer, key, value)
        for tensor in planned:
            add_info(writer, tensor)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for tensor in planned:
            writer.write_tensor_data(packed(tensor))
    finally:
        writer.close()


def add_value(writer: GGUFWriter, key: str, value: Any) -> None:
    """A setting under the type that readers expect of its kind."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def add_info(writer: GGUFWriter, tensor: TensorPlan) -> None:
    kind = tensor.type
    num_bytes = int(np.prod(tensor.shape)) // kind.block_len * kind.block_bytes
    # the dtype is read only where no type is given
    writer.add_tensor_info(
        tensor.name,
        tensor.shape,
        np.dtype(np.float32),
        num_bytes,
        GGMLQuantizationType(kind.number),
    )


def packed(tensor: TensorPlan) -> np.ndarray[Any, Any]:
    """A tensor's bytes; a UsageError for numbers that F16 cannot hold."""
    made = tensor.make()
    most = float(made.abs().max()) if tensor.type.name == "F16" else 0.0
    if most > MAX_F16:
        raise UsageError(
            f"tensor {tensor.name} has a number of size {most:g}, above the largest that F16 holds "
            f"({MAX_F16:g}). Use f32."
        )
    return quantize_with_library(tensor.type, made)
