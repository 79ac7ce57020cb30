"""The structures of the compiled library, field by field as its sources have them.

PackedStruct        struct Packed of panels.h
PagedStruct         struct PagedCall of pages.h
ShortStruct         struct ShortCall of short_attention.cpp
NormStruct          struct Norm of layer_ops.h
LayerStruct and others        of layer.h
NextStruct and others         of decode_step.h
GreedyStruct        struct Greedy of greedy.cpp
"""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int64, c_void_p

FLOATS = ("scale", "softcap")


class PackedStruct(ctypes.Structure):
    """A packed weight, as the product reads it."""

    _fields_ = (
        *((name, c_int64) for name in ("bits", "inputs", "outputs")),
        *((name, c_void_p) for name in ("data", "scales", "minima")),
        ("is_rounded", c_int64),
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


class NormStruct(ctypes.Structure):
    """A norm's weight and how it is computed."""

    _fields_ = (
        *((name, c_void_p) for name in ("weight", "bias")),
        ("is_centred", c_int64),
        *((name, c_float) for name in ("eps", "offset")),
    )


class ProductStruct(ctypes.Structure):
    """A packed weight and a bias."""

    _fields_ = (("weight", c_void_p), ("bias", c_void_p))


class PathStruct(ctypes.Structure):
    """The norms of a residual path."""

    _fields_ = (("norm", NormStruct), ("norm_out", NormStruct))


HEADS = ("has_norms", "heads", "key_heads", "head_size", "value_size")


class HeadsStruct(ctypes.Structure):
    """An attention sub-layer."""

    _fields_ = (
        *((name, ProductStruct) for name in ("qkv", "out")),
        *((name, NormStruct) for name in ("query_norm", "key_norm")),
        *((name, c_int64) for name in HEADS),
    )


PATHS = ("own_path", "cross_path", "feedforward_path")


class LayerStruct(ctypes.Structure):
    """A whole layer."""

    _fields_ = (
        *((name, c_int64) for name in ("width", "placement", "has_cross")),
        *((name, PathStruct) for name in PATHS),
        *((name, HeadsStruct) for name in ("own", "cross")),
        *((name, ProductStruct) for name in ("up", "down")),
        *((name, c_int64) for name in ("inner", "is_gated", "activation")),
    )


class TurnsStruct(ctypes.Structure):
    """The angles of all positions, and the positions of a pass's tokens."""

    _fields_ = (
        *((name, c_void_p) for name in ("cos", "sin", "positions")),
        *((name, c_int64) for name in ("stride", "size", "is_interleaved")),
    )


class LayerPassStruct(ctypes.Structure):
    """What layers share in one pass."""

    _fields_ = (
        *((name, c_void_p) for name in ("scratch", "slots")),
        *((name, c_int64) for name in ("rows", "threads")),
        ("turns", TurnsStruct),
        *((name, PagedStruct) for name in ("own", "cross")),
    )


class LayerAtStruct(ctypes.Structure):
    """One layer, where its rows lie, and which of a pass's structures is its own."""

    _fields_ = (
        *((name, c_void_p) for name in ("layer", "k", "v", "cross_k", "cross_v")),
        ("group", c_int64),
    )


class WordsStruct(ctypes.Structure):
    """A word table, and what is done to a row of it."""

    _fields_ = (
        *((name, c_void_p) for name in ("weight", "added")),
        ("norm", NormStruct),
        *((name, c_int64) for name in ("has_norm", "width")),
        ("scale", c_float),
    )


class NextStruct(ctypes.Structure):
    """A decoder: word table, layers, head."""

    _fields_ = (
        ("words", WordsStruct),
        *(("layers", c_void_p), ("num_layers", c_int64)),
        *(("norm", NormStruct), ("has_norm", c_int64)),
        *(("head", ProductStruct), ("head_scale", c_float)),
    )


class NextCallStruct(ctypes.Structure):
    """One pass over lanes of one token each."""

    _fields_ = (
        *(("passes", c_void_p), ("num_passes", c_int64)),
        *((name, c_void_p) for name in ("ids", "banned")),
        *((name, c_int64) for name in ("num_banned", "count")),
        *((name, c_void_p) for name in ("values", "found", "sums")),
        ("threads", c_int64),
    )


class GreedyStruct(ctypes.Structure):
    """Lanes that are written on for some passes."""

    _fields_ = (
        ("call", NextCallStruct),
        *((name, c_int64) for name in ("lanes", "group", "stride")),
        *((name, c_void_p) for name in ("ids", "ends", "limits", "scores", "tokens")),
    )
