"""SentencePiece's .model file -> its pieces and settings, checked.

The file is a protobuf message (sentencepiece_model.proto). Read here because the `sentencepiece`
package needs protobuf at run time; fields that encoding does not need are skipped. Settings that
the `tokenizers` library cannot reproduce are errors. Every length and every index of the
normalization trie is checked before it is used.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import DataError, shown

MAX_FILE_BYTES = 1 << 27
TIKTOKEN_LINE = re.compile(rb"[A-Za-z0-9+/]+=* \d+\n")
ALGORITHMS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}


class PieceType(IntEnum):
    """The enum ModelProto.SentencePiece.Type."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class SentencePiecePiece(NamedTuple):
    text: str
    score: float
    type: PieceType


@dataclass(frozen=True)
class SentencePieceFile:
    """The parts of a .model file that encoding depends on."""

    pieces: tuple[SentencePiecePiece, ...]
    """The index of a piece is its id."""
    algorithm: str = "unigram"
    byte_fallback: bool = False
    begin_id: int = 1
    end_id: int = 2
    pad_id: int = -1
    charsmap: bytes = b""
    """Compiled normalization rules; empty: text is not normalized."""
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True

    @property
    def unknown_id(self) -> int:
        return next(i for i, piece in enumerate(self.pieces) if piece.type == PieceType.UNKNOWN)

    def name_of(self, index: int) -> str | None:
        """The piece with an id, or None."""
        return self.pieces[index].text if 0 <= index < len(self.pieces) else None


TRAINER = {3: "algorithm", 35: "byte_fallback", 41: "begin_id", 42: "end_id", 43: "pad_id"}
NORMALIZER = {2: "charsmap", 3: "add_dummy_prefix", 4: "remove_extra_whitespaces"}
WHITESPACE_AS_SUFFIX, ESCAPE_WHITESPACES = 24, 5
PIECE_TAG, TEXT_TAG, SCORE_TAG, TYPE_TAG = 0x0A, 0x0A, 0x15, 0x18
"""First bytes of a piece and of its fields: field number and wire type."""
MIN_PIECE_BYTES = 7
"""Bytes of score and type, which are read together."""


def read_sentencepiece(path: Path) -> SentencePieceFile:
    """Read and check a file. Raises a DataError with the reason if it cannot be used."""
    if path.stat().st_size > MAX_FILE_BYTES:
        raise DataError(f"is larger than {MAX_FILE_BYTES >> 20} MiB, too large for pieces.", path)
    data = path.read_bytes()
    if TIKTOKEN_LINE.match(data):
        raise DataError(
            "is a tiktoken file, which does not say how text is split. Put the tokenizer.json of "
            "this model beside it.",
            path,
        )
    try:
        file = parse_model(data)
        check_pieces(file)
        check_charsmap(file.charsmap)
    except ProtobufError as error:
        raise DataError(
            f"is not a SentencePiece model that can be used ({error}). Fetch it again, or put a "
            "tokenizer.json beside it.",
            path,
        ) from None
    return file


def parse_model(data: bytes) -> SentencePieceFile:
    """Parse a ModelProto. Raises a ProtobufError for other bytes."""
    pieces: list[SentencePiecePiece] = []
    settings: dict[str, Any] = {}
    position = 0
    while position < len(data):
        position = parse_simple_pieces(data, position, pieces)
        if position == len(data):
            break
        number, value, position = read_field(data, position)
        if number == 1:
            pieces.append(parse_piece(as_bytes(value)))
        elif number == 2:
            settings |= parse_trainer(as_bytes(value))
        elif number == 3:
            settings |= parse_normalizer(as_bytes(value))
    return SentencePieceFile(tuple(pieces), **settings)


def parse_simple_pieces(data: bytes, position: int, pieces: list[SentencePiecePiece]) -> int:
    """Append the pieces from `position` on, up to the first that is not in the form in which
    SentencePiece writes them: text, score and, unless it is NORMAL, type. Returns the position
    after them.

    `parse_piece` reads any form, but takes ten times as long: a vocabulary has up to 262,144
    pieces.
    """
    starts: list[int] = []
    last = len(data) - 2
    while position < last and data[position] == PIECE_TAG and data[position + 1] < 0x80:
        starts.append(position)
        position += 2 + data[position + 1]
    starts.append(position)
    bounds = np.array(starts)
    simple = simple_pieces(np.frombuffer(data, np.uint8), bounds[:-1], bounds[1:])
    pieces += simple
    return starts[len(simple)]


def simple_pieces(
    data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> list[SentencePiecePiece]:
    """The pieces at these positions, up to the first that is not in the common form."""
    starts = starts[ends <= len(data)][: np.searchsorted(starts, len(data) - MIN_PIECE_BYTES) + 1]
    ends = ends[: len(starts)]
    text_ends = starts + 4 + data[np.minimum(starts + 3, len(data) - 1)]
    sizes = ends - text_ends  # of score and type
    inside = np.minimum(text_ends, len(data) - MIN_PIECE_BYTES)
    types = np.where(sizes == 7, data[inside + 6], PieceType.NORMAL)
    is_simple = (data[starts + 2] == TEXT_TAG) & (data[inside] == SCORE_TAG) & (inside == text_ends)
    is_simple &= (sizes == 5) | ((sizes == 7) & (data[inside + 5] == TYPE_TAG))
    is_simple &= (types >= 1) & (types <= len(PieceType))
    count = len(starts) if is_simple.all() else int(is_simple.argmin())
    texts = decode_ranges(data, starts[:count] + 4, text_ends[:count])
    if texts is None:
        return []
    scores = data[text_ends[:count, None] + np.arange(1, 5)].view("<f4")[:, 0].tolist()
    kinds = np.array([None, *PieceType], dtype=object)[types[:count]].tolist()
    # without the Python function that a named tuple has as a constructor
    return list(
        map(partial(tuple.__new__, SentencePiecePiece), zip(texts, scores, kinds, strict=True))
    )


def decode_ranges(
    data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> list[str] | None:
    """The texts between these positions; None if one is not UTF-8 or contains a NUL."""
    steps = np.zeros(len(data) + 1, dtype=np.int8)
    steps[starts] = 1
    steps[ends + 1] -= 1
    is_text = steps[:-1].cumsum(dtype=np.int8).view(bool)
    separated = data.copy()
    separated[ends] = 0  # the byte after a text
    try:
        texts = separated[is_text].tobytes().decode().split("\0")[:-1]
    except UnicodeDecodeError:
        return None
    return texts if len(texts) == len(starts) else None


def parse_piece(data: bytes) -> SentencePiecePiece:
    text, score, piece_type = "", 0.0, PieceType.NORMAL
    for number, value in fields(data):
        if number == 1:
            text = as_text(value)
        elif number == 2:
            score = as_float(value)
        elif number == 3:
            try:
                piece_type = PieceType(as_int(value))
            except ValueError:
                raise ProtobufError(f"piece {shown(text)} is of type {shown(value)}") from None
    return SentencePiecePiece(text, score, piece_type)


def parse_trainer(data: bytes) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for number, value in fields(data):
        if number == WHITESPACE_AS_SUFFIX and as_int(value):
            raise ProtobufError("it writes spaces after words, not before them")
        if number in TRAINER:
            settings[TRAINER[number]] = as_int(value)
    if "algorithm" in settings:
        settings["algorithm"] = ALGORITHMS.get(settings["algorithm"], str(settings["algorithm"]))
    if "byte_fallback" in settings:
        settings["byte_fallback"] = bool(settings["byte_fallback"])
    return settings


def parse_normalizer(data: bytes) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for number, value in fields(data):
        if number == ESCAPE_WHITESPACES and not as_int(value):
            raise ProtobufError("it keeps spaces as they are")
        if number in NORMALIZER:
            is_map = NORMALIZER[number] == "charsmap"
            settings[NORMALIZER[number]] = as_bytes(value) if is_map else bool(as_int(value))
    return settings


def check_pieces(file: SentencePieceFile) -> None:
    """Raise a ProtobufError for pieces that cannot be encoded with, or not by `tokenizers`."""
    if file.algorithm not in ("unigram", "bpe"):
        raise ProtobufError(f"its algorithm is {file.algorithm!r}, not 'unigram' or 'bpe'")
    texts, scores, types = zip(*file.pieces, strict=True) if file.pieces else ((), (), ())
    if types.count(PieceType.UNKNOWN) != 1:
        raise ProtobufError(f"not one of its {len(texts)} pieces is the unknown one, or several")
    known = set(texts)
    is_unique = len(known) == len(texts) and "" not in known
    if not is_unique or PieceType.UNUSED in types or not all(map(math.isfinite, scores)):
        raise first_problem(file.pieces)
    if file.byte_fallback and not {f"<0x{byte:02X}>" for byte in range(256)} <= known:
        raise ProtobufError("it has byte_fallback, but not all bytes are pieces")


def first_problem(pieces: Iterable[SentencePiecePiece]) -> ProtobufError:
    """What is wrong with the first piece that cannot be used."""
    seen: set[str] = set()
    for piece in pieces:
        if not piece.text or piece.text in seen:
            return ProtobufError(f"piece {shown(piece.text)} is empty or a duplicate")
        if not math.isfinite(piece.score):
            return ProtobufError(f"the score of piece {shown(piece.text)} is {piece.score}")
        if piece.type == PieceType.UNUSED:
            return ProtobufError(f"piece {shown(piece.text)} is marked as unused")
        seen.add(piece.text)
    raise AssertionError("all pieces can be used")


# --- the protobuf wire format ---------------------------------------------------------------

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MAX_VARINT_BYTES = 10
"""64 bits in groups of seven."""

Value = int | bytes
"""An int for a varint; the raw bytes for every other wire type."""


class ProtobufError(ValueError):
    """Bytes that are not a valid protobuf message."""


def fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """The fields of a message in order, as (number, value); nested messages stay bytes."""
    position = 0
    while position < len(message):
        number, value, position = read_field(message, position)
        yield number, value


def read_field(message: bytes, start: int) -> tuple[int, Value, int]:
    """Number and value of the field at a position, and the position after it."""
    tag, position = read_varint(message, start)
    number, wire_type = tag >> 3, tag & 7
    if number == 0:
        raise ProtobufError(f"field 0 at byte {start}")
    if wire_type == VARINT:
        return number, *read_varint(message, position)
    length, position = read_length(message, position, wire_type)
    if length > len(message) - position:
        raise ProtobufError(f"field {number} at byte {start} is longer than its message")
    return number, message[position : position + length], position + length


def read_length(message: bytes, position: int, wire_type: int) -> tuple[int, int]:
    """The length of a value that is not a varint, and its position."""
    if wire_type == BYTES:
        return read_varint(message, position)
    if wire_type in (FIXED32, FIXED64):
        return (4 if wire_type == FIXED32 else 8), position
    raise ProtobufError(f"wire type {wire_type} at byte {position - 1}")


def read_varint(message: bytes, position: int) -> tuple[int, int]:
    """An unsigned number of up to 64 bits, and the position after it."""
    if position < len(message) and message[position] < 0x80:  # the common case: one byte
        return message[position], position + 1
    value = 0
    for index in range(MAX_VARINT_BYTES):
        if position + index >= len(message):
            raise ProtobufError(f"a number at byte {position} has no end")
        byte = message[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if value >> 64:
                break
            return value, position + index + 1
    raise ProtobufError(f"a number at byte {position} has more than 64 bits")


def as_int(value: Value) -> int:
    """A varint as int32; negative numbers are stored in 64 bits."""
    if not isinstance(value, int):
        raise ProtobufError("bytes where a number is expected")
    return value - (1 << 64) if value >> 63 else value


def as_bytes(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise ProtobufError("a number where bytes are expected")
    return value


def as_text(value: Value) -> str:
    try:
        return as_bytes(value).decode()
    except UnicodeDecodeError:
        raise ProtobufError("text that is not UTF-8") from None


def as_float(value: Value) -> float:
    if len(as_bytes(value)) != 4:
        raise ProtobufError("a float that has not four bytes")
    number: float = struct.unpack("<f", as_bytes(value))[0]
    return number


# --- precompiled_charsmap -------------------------------------------------------------------


def check_charsmap(charsmap: bytes) -> None:
    """Raise a ProtobufError if a lookup could leave the trie or the texts.

    A charsmap is a trie (a double array of 32-bit units) followed by the NUL-terminated texts that
    its leaves point to. The library follows these numbers without bounds checks.
    """
    if not charsmap:
        return
    size = int.from_bytes(charsmap[:4], "little")
    if len(charsmap) < 4 or size == 0 or size % 4 or size > len(charsmap) - 4:
        raise ProtobufError(f"its charsmap of {len(charsmap)} bytes has a trie of {size}")
    units = np.frombuffer(charsmap, dtype="<u4", count=size // 4, offset=4).astype(np.int64)
    texts = charsmap[4 + size :]
    try:
        texts.decode()
    except UnicodeDecodeError:
        raise ProtobufError("the texts of its charsmap are not UTF-8") from None
    if not children_in_bounds(units) or not leaves_in_bounds(
        units, np.frombuffer(texts, dtype=np.uint8)
    ):
        raise ProtobufError("its charsmap points outside of itself")


def inner_nodes(units: NDArray[np.int64]) -> NDArray[np.int64]:
    """Indices of all units that are not values; a lookup visits only those."""
    return np.flatnonzero(units < 1 << 31)


def children(units: NDArray[np.int64], nodes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Index of the child of each node for byte 0; for another byte the low 8 bits differ."""
    indices: NDArray[np.int64] = nodes ^ child_offsets(units[nodes])
    return indices


def child_offsets(units: NDArray[np.int64]) -> NDArray[np.int64]:
    """The offset field: 22 bits, in units of 256 if bit 9 is set."""
    values: NDArray[np.int64] = (units >> 10) << ((units & (1 << 9)) >> 6)
    return values


def children_in_bounds(units: NDArray[np.int64]) -> bool:
    return bool((children(units, inner_nodes(units)) | 0xFF < len(units)).all())


def leaves_in_bounds(units: NDArray[np.int64], texts: NDArray[np.uint8]) -> bool:
    """Whether each value is the index of the first byte of a character in the texts."""
    nodes = inner_nodes(units)
    leaves = units[children(units, nodes[(units[nodes] >> 8) & 1 == 1])]
    values = leaves & 0x7FFFFFFF
    if not len(values):
        return True
    if values.max() >= len(texts):
        return False
    return bool((texts[values] & 0xC0 != 0x80).all())
