"""The compiled library -> its functions, with the structures they read; None where there is none.

native()            Native | None, found or built once a process
PackedStruct        struct Packed of linear.cpp
PagedStruct         struct PagedCall of pages.h
ShortStruct         struct ShortCall of short.cpp
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
from collections.abc import Callable
from ctypes import c_float, c_int64, c_void_p
from dataclasses import dataclass

from weft.nn.native.build import BuildError, library_path

log = logging.getLogger(__name__)

FLOATS = ("scale", "softcap")


class PackedStruct(ctypes.Structure):
    """A packed weight, as the product reads it."""

    _fields_ = (
        *((name, c_int64) for name in ("bits", "inputs", "outputs")),
        *((name, c_void_p) for name in ("data", "scales", "minima")),
    )


POINTERS = (
    *("q", "k", "v", "bias", "out", "lse"),
    *("offsets", "starts", "lengths", "table", "order"),
)
NUMBERS = (
    *("k_page", "k_row", "k_head", "v_page", "v_row", "v_head", "q_token", "q_head"),
    *("sequences", "table_stride", "heads", "key_heads", "head_size", "value_size", "page_rows"),
    *("is_causal", "window", "distances", "zero_distance", "threads"),
)


class PagedStruct(ctypes.Structure):
    """One call of attention over pages."""

    _fields_ = (
        *((name, c_void_p) for name in POINTERS),
        *((name, c_int64) for name in NUMBERS),
        *((name, c_float) for name in FLOATS),
    )


class StridedStruct(ctypes.Structure):
    """Rows of numbers by batch, head and token."""

    _fields_ = (("data", c_void_p), *((name, c_int64) for name in ("batch", "head", "token")))


STRIDED = ("q", "k", "v", "added", "out", "dout", "dq", "dk", "dv")
SIZES = ("batch", "heads", "queries", "keys", "head_size", "value_size", "threads")


class ShortStruct(ctypes.Structure):
    """One call of attention over short sequences."""

    _fields_ = (
        *((name, StridedStruct) for name in STRIDED),
        *((name, c_void_p) for name in ("weights", "lse", "dlse")),
        *((name, c_int64) for name in SIZES),
        ("scale", c_float),
    )


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
    panel_width: int
    """Outputs that lie side by side in a packed weight."""


@functools.cache
def native() -> Native | None:
    """The library; None when it is switched off or cannot be built, which is said once."""
    if os.environ.get("WEFT_NATIVE") == "0":
        return None
    try:
        return load(ctypes.CDLL(str(library_path())))
    except (BuildError, OSError) as error:
        log.warning("native kernels are not used, torch does their work: reason=%s", error)
        return None


def load(library: ctypes.CDLL) -> Native:
    """Declare what the functions take."""
    library.weft_linear.argtypes = [*[c_void_p] * 4, *[c_int64] * 6]
    library.weft_linear.restype = None
    library.weft_paged_attention.argtypes = [c_void_p]
    library.weft_paged_attention.restype = None
    library.weft_activate.argtypes = [c_int64, *[c_void_p] * 3, *[c_int64] * 4]
    library.weft_activate.restype = None
    library.weft_short_attention.argtypes = [c_void_p, c_int64]
    library.weft_short_attention.restype = None
    library.weft_dropout.argtypes = [*[c_void_p] * 2, *[c_int64] * 3, c_float, c_int64]
    library.weft_dropout.restype = None
    sizes = ("weft_packed_size", "weft_paged_call_size", "weft_short_call_size")
    for name in ("weft_panel_width", *sizes):
        library[name].restype = c_int64
    check_size(PackedStruct, library.weft_packed_size())
    check_size(PagedStruct, library.weft_paged_call_size())
    check_size(ShortStruct, library.weft_short_call_size())
    functions = (
        *(library.weft_linear, library.weft_paged_attention),
        *(library.weft_activate, library.weft_short_attention, library.weft_dropout),
    )
    return Native(*functions, library.weft_panel_width())


def check_size(struct: type[ctypes.Structure], size: int) -> None:
    ours = ctypes.sizeof(struct)
    assert ours == size, f"{struct.__name__} has {ours} bytes here and {size} in the library"
