"""The protobuf wire format: bytes -> (field number, value), one after the other.

Differs from the protobuf library: nothing is generated, nothing is copied before its length is
known to be inside the message, and a wrong byte is a WireError that says where it stands.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MAX_VARINT_BYTES = 10
"""64 bits in groups of seven."""

Value = int | bytes
"""An int for a varint; bytes for everything else, as it stands in the message."""


class WireError(ValueError):
    """Bytes that are no protobuf message."""


def fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """Every field of a message in its order; nested messages stay bytes."""
    place = 0
    while place < len(message):
        start = place
        tag, place = read_varint(message, place)
        number, wire_type = tag >> 3, tag & 7
        if number == 0:
            raise WireError(f"field 0 at byte {start}")
        value: Value
        if wire_type == VARINT:
            value, place = read_varint(message, place)
        else:
            length, place = read_length(message, place, wire_type)
            if length > len(message) - place:
                raise WireError(f"field {number} at byte {start} is longer than its message")
            value, place = message[place : place + length], place + length
        yield number, value


def read_length(message: bytes, place: int, wire_type: int) -> tuple[int, int]:
    """The length of a value that is not a varint, and where it begins."""
    if wire_type == BYTES:
        return read_varint(message, place)
    if wire_type in (FIXED32, FIXED64):
        return (4 if wire_type == FIXED32 else 8), place
    raise WireError(f"wire type {wire_type} at byte {place - 1}")


def read_varint(message: bytes, place: int) -> tuple[int, int]:
    """An unsigned number of up to 64 bits, and the place behind it."""
    if place < len(message) and message[place] < 0x80:  # nearly always
        return message[place], place + 1
    value = 0
    for index in range(MAX_VARINT_BYTES):
        if place + index >= len(message):
            raise WireError(f"a number at byte {place} has no end")
        byte = message[place + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if value >> 64:
                break
            return value, place + index + 1
    raise WireError(f"a number at byte {place} has more than 64 bits")


def as_int(value: Value) -> int:
    """A varint as int32: negative numbers are written in 64 bits."""
    if not isinstance(value, int):
        raise WireError("bytes where a number is expected")
    return value - (1 << 64) if value >> 63 else value


def as_bytes(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise WireError("a number where bytes are expected")
    return value


def as_text(value: Value) -> str:
    try:
        return as_bytes(value).decode()
    except UnicodeDecodeError:
        raise WireError("text that is not UTF-8") from None


def as_float(value: Value) -> float:
    if len(as_bytes(value)) != 4:
        raise WireError("a float that has not four bytes")
    number: float = struct.unpack("<f", as_bytes(value))[0]
    return number
