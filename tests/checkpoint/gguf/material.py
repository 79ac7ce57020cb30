"""What the GGUF tests share: a writer of headers that knows nothing of ours."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

U32, U64 = struct.Struct("<I"), struct.Struct("<Q")


class Raw:
    """A metadata value of a given type, as bytes: Raw(4, U32.pack(7))."""

    def __init__(self, kind: int, data: bytes) -> None:
        self.kind, self.data = kind, data


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return U64.pack(len(data)) + data


def number(value: int) -> Raw:
    return Raw(4, U32.pack(value))


def string(value: str) -> Raw:
    return Raw(8, text(value))


def array(kind: int, items: list[bytes]) -> Raw:
    return Raw(9, U32.pack(kind) + U64.pack(len(items)) + b"".join(items))


def strings(items: list[str]) -> Raw:
    return array(8, [text(item) for item in items])


def entry(key: str, value: Raw) -> bytes:
    return text(key) + U32.pack(value.kind) + value.data


def info(name: str, dims: list[int], kind: int, offset: int) -> bytes:
    """A tensor's description; `dims` in the order of the file, fastest first."""
    return (
        text(name)
        + U32.pack(len(dims))
        + b"".join(map(U64.pack, dims))
        + U32.pack(kind)
        + U64.pack(offset)
    )


def gguf_bytes(
    metadata: Mapping[str, Raw],
    infos: list[bytes],
    data: bytes = b"",
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    head = b"GGUF" + U32.pack(version) + U64.pack(len(infos)) + U64.pack(len(metadata))
    head += b"".join(entry(key, value) for key, value in metadata.items()) + b"".join(infos)
    return head + b"\0" * (-len(head) % alignment) + data


def small_file() -> bytes:
    """A whole file of about a kilobyte, with all kinds of value and three tensors."""
    metadata = {
        "general.architecture": string("llama"),
        "a.u8": Raw(0, b"\x07"),
        "a.i8": Raw(1, b"\xf9"),
        "a.u16": Raw(2, struct.pack("<H", 700)),
        "a.i16": Raw(3, struct.pack("<h", -700)),
        "llama.block_count": number(2),
        "a.i32": Raw(5, struct.pack("<i", -70000)),
        "a.f32": Raw(6, struct.pack("<f", 0.5)),
        "a.bool": Raw(7, b"\x01"),
        "a.u64": Raw(10, struct.pack("<Q", 1 << 40)),
        "a.i64": Raw(11, struct.pack("<q", -(1 << 40))),
        "a.f64": Raw(12, struct.pack("<d", 0.1)),
        "tokenizer.ggml.tokens": strings(["a", "b", "\u4e2d", "", "<s>"]),
        "tokenizer.ggml.scores": array(6, [struct.pack("<f", -i) for i in range(5)]),
        "tokenizer.ggml.token_type": array(5, [struct.pack("<i", 1)] * 5),
        "a.flags": array(7, [b"\x00", b"\x01"]),
        "a.nested": array(9, [U32.pack(4) + U64.pack(2) + U32.pack(1) + U32.pack(2)] * 2),
    }
    infos = [
        info("one", [32, 3], 8, 0),
        info("two", [5], 0, 128),
        info("three", [2, 3, 4], 1, 160),
    ]
    return gguf_bytes(metadata, infos, bytes(range(256)))


def write(folder: Path, data: bytes, name: str = "x.gguf") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def as_list(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value
