"""The compiled library -> its functions, with the structures they read; None where there is none.

native() is a `Native`, found or built once a process; structs.py has the structures.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
from collections.abc import Callable
from ctypes import c_float, c_int64, c_void_p
from dataclasses import dataclass

import torch  # noqa: F401  (its OpenMP library resolves the symbols of ours)

from weft.core.errors import UsageError
from weft.native.compiler import BuildError, IsaError, library_path
from weft.native.structs import (
    GreedyStruct,
    LayerAtStruct,
    LayerPassStruct,
    LayerStruct,
    NextCallStruct,
    NextStruct,
    NormStruct,
    PackedStruct,
    PagedStruct,
    ShortStruct,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Native:
    """The functions of the library. Addresses are plain numbers."""

    linear: Callable[..., None]
    """(weight, x, bias or None, y, rows, x_stride, y_stride, begin, end, threads)"""
    paged_attention: Callable[[int], None]
    """(address of a PagedStruct)"""
    activate: Callable[..., None]
    """(kind, x, up or None, y, rows, size, x_stride, threads)"""
    short_attention: Callable[..., None]
    """(address of a ShortStruct, 1 for the way back)"""
    dropout: Callable[..., None]
    """(x, y, count, seed, dropped of 256, scale, threads)"""
    agreement: Callable[..., None]
    """(logits of two passes, targets, losses, rows, size, smoothing, weight, threads)"""
    log_sums: Callable[..., None]
    """(rows, how many, size, stride, sums, threads)"""
    best: Callable[..., None]
    """(rows, how many, size, stride, count, values, ids, threads)"""
    head_best: Callable[..., None]
    """(weight, x, bias or None, rows, x_stride, banned ids, how many, count, values, ids, sums,
    threads)"""
    copy_rows: Callable[..., None]
    """(pages, bytes of a page, of a row, triples of source, target and rows, how many)"""
    norm: Callable[..., None]
    """(address of a NormStruct, x, y, rows, size, x_stride, threads)"""
    rows: Callable[..., None]
    """(weight, ids, how many, y, a number for how many had a row)"""
    layers: Callable[..., None]
    """(LayerAtStructs, how many, addresses of LayerPassStructs, x, y, as much memory as y)"""
    next: Callable[..., None]
    """(address of a NextStruct, of a NextCallStruct, a number for how many ids had a row)"""
    greedy: Callable[..., None]
    """(address of a NextStruct, of a GreedyStruct, a number for how many lanes were done)"""
    panel_width: int
    """Outputs that lie side by side in a packed weight."""


@functools.cache
def native() -> Native | None:
    """The library; None if it is switched off, or not available, which is logged once."""
    if os.environ.get("WEFT_NATIVE") == "0":
        return None
    try:
        return load(ctypes.CDLL(str(library_path())))
    except IsaError as error:
        raise UsageError(str(error)) from None
    except (BuildError, OSError) as error:
        log.warning(
            "native kernels are not available (%s): generation is about 14 times slower and uses "
            "2.4 times the memory. Install g++, or a wheel of Weft with prebuilt libraries.",
            error,
        )
        return None


FUNCTIONS: dict[str, list[type]] = {
    "linear": [*[c_void_p] * 4, *[c_int64] * 6],
    "paged_attention": [c_void_p],
    "activate": [c_int64, *[c_void_p] * 3, *[c_int64] * 4],
    "short_attention": [c_void_p, c_int64],
    "dropout": [*[c_void_p] * 2, *[c_int64] * 3, c_float, c_int64],
    "agreement": [*[c_void_p] * 4, *[c_int64] * 2, *[c_float] * 2, c_int64],
    "log_sums": [c_void_p, *[c_int64] * 3, c_void_p, c_int64],
    "best": [c_void_p, *[c_int64] * 4, *[c_void_p] * 2, c_int64],
    "head_best": [
        *[c_void_p] * 3,
        *[c_int64] * 2,
        c_void_p,
        c_int64,
        c_int64,
        *[c_void_p] * 3,
        c_int64,
    ],
    "copy_rows": [c_void_p, *[c_int64] * 2, c_void_p, c_int64],
    "norm": [*[c_void_p] * 3, *[c_int64] * 4],
    "rows": [*[c_void_p] * 2, c_int64, *[c_void_p] * 2],
    "layers": [c_void_p, c_int64, *[c_void_p] * 4],
    "next": [c_void_p] * 3,
    "greedy": [c_void_p] * 3,
}
"""What the functions take; each is a field of Native."""
STRUCTS: dict[str, type[ctypes.Structure]] = {
    "packed": PackedStruct,
    "paged_call": PagedStruct,
    "short_call": ShortStruct,
    "norm": NormStruct,
    "layer": LayerStruct,
    "layer_pass": LayerPassStruct,
    "layer_at": LayerAtStruct,
    "next": NextStruct,
    "next_call": NextCallStruct,
    "greedy": GreedyStruct,
}


def load(library: ctypes.CDLL) -> Native:
    """Declare what the functions take, and see that both sides mean the same structures."""
    functions: dict[str, Callable[..., None]] = {}
    for name, arguments in FUNCTIONS.items():
        function = library[f"weft_{name}"]
        function.argtypes, function.restype = arguments, None
        functions[name] = function
    for name, struct in STRUCTS.items():
        check_size(struct, number(library, f"weft_{name}_size"))
    return Native(**functions, panel_width=number(library, "weft_panel_width"))


def number(library: ctypes.CDLL, name: str) -> int:
    """What a function without arguments says."""
    library[name].restype = c_int64
    return int(library[name]())


def check_size(struct: type[ctypes.Structure], size: int) -> None:
    ours = ctypes.sizeof(struct)
    assert ours == size, f"{struct.__name__} has {ours} bytes here and {size} in the library"
