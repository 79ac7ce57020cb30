"""A PackedWeight -> W_OI again, or the rows of it that ids name: bit for bit what was packed.

Of few bits these are the float32 numbers that checkpoint/gguf/dequantise.py makes of the blocks.
"""

from __future__ import annotations

from ctypes import byref, c_int64

import torch
from torch import Tensor

from weft.core.quantized import Kind, QuantizedMatrix
from weft.native.library import native
from weft.native.packed import PLUS_128, PackedWeight


def unpacked(packed: PackedWeight) -> Tensor:
    """W_OI in memory of its own; without the library the tensor that was packed, itself."""
    if not packed.is_native:
        return packed.data
    parts = (packed.data, packed.scales, packed.minima)
    rows = (None if part is None else by_rows(part, packed.outputs) for part in parts)
    return numbers(packed.kind, *rows)


def rows_of(packed: PackedWeight, ids: Tensor) -> Tensor:
    """W_OI[ids], [..., I], read from the panels alone; an IndexError for an id that has no row."""
    if not packed.is_native:
        check_ids(ids, packed.outputs)
        return packed.data[ids]
    library, ids, done = native(), ids.long().contiguous(), c_int64()
    assert library is not None, "the weight was packed for a library that is not there"
    rows = torch.empty((*ids.shape, packed.inputs), dtype=torch.float32, device="cpu")
    library.rows(packed.address, ids.data_ptr(), ids.numel(), rows.data_ptr(), byref(done))
    if done.value < ids.numel():
        check_ids(ids, packed.outputs)
    return rows


def check_ids(ids: Tensor, count: int) -> None:
    """An index below 0 would count from the end."""
    least, most = (int(end) for end in ids.aminmax()) if ids.numel() else (0, 0)
    if least < 0 or most >= count:
        raise IndexError(
            f"ids are {least} to {most}, the table has rows 0 to {count - 1}. Use ids of the "
            "model's vocabulary."
        )


def by_rows(panels: Tensor, outputs: int) -> Tensor:
    """[O / width, I, width] -> [O, I]: the way back from packed.py's `panels`."""
    width = panels.shape[2]
    rows = panels.new_empty(outputs, panels.shape[1])
    whole = outputs // width
    rows[: whole * width].unflatten(0, (whole, width)).copy_(panels[:whole].transpose(1, 2))
    if outputs % width:
        rows[whole * width :] = panels[whole].T[: outputs % width]
    return rows


def numbers(
    kind: Kind, data: Tensor | None, scales: Tensor | None = None, minima: Tensor | None = None
) -> Tensor:
    """Floats as they are; words with the scales and minima that belong to them, as floats."""
    assert data is not None, "a packed weight without data"
    if scales is None:
        return data
    return QuantizedMatrix(data ^ PLUS_128 if kind == "q8" else data, scales, minima).numbers()
