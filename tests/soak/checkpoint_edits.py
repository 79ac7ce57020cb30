"""Mutations of checkpoint files. An edit is a JSON list, so that a case can be stored and replayed:

["bytes", at, hex]             overwrite            ["insert", at, hex]
["delete", at, count]                               ["truncate", length]
["json", path, value]          set a value          ["json delete", path]
["json rename", path, key]                          (a value {"$raw": text} is inserted as text)
["header", path, value]        as "json", in the header of a safetensors file
["metadata", index, kind, hex] value of a GGUF entry: its type and bytes
["tensor", index, field, n]    field of a GGUF tensor: rank, type, offset or a dimension
["pickle", name, change]       a tensor of a .bin file: another type, shape or value
["line", number, text]         a line of a text file; null deletes it
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from weft.checkpoint.gguf.header import DTYPES, HeaderCursor, read_alignment, read_version

Edit = list[Any]
U32, U64 = struct.Struct("<I"), struct.Struct("<Q")
HUGE = (0, 1, 2, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**60, 2**63 - 1, 2**64 - 1)
RAW_VALUES = (
    "9" * 5000, "1" + "0" * 400, "-1e400", "1e400", "NaN", "Infinity", "1e-400", "-0.0",
    "[" * 3000 + "]" * 3000, '"\\ud800"', '"\\u0000"', '{"a": 1, "a": 2}', "18446744073709551616",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 64, 1000, 100_000, 2**31 - 1, 2**31, 2**63, 1.5, -2.5,
    1e30, 1e-30, "", "x", "0", "llama", "float32", "F8_E4M3", "I64", [], [[]], {}, {"a": 1},
    [0, 1], ["a", "b"], [0] * 1000, "a" * 10_000,
)  # fmt: skip
LINES = ("", " ", "a", "a b", "a b c", "\u2581", "\x00", "\u2028", "#version: 9", "a " * 500, "\r")
PICKLE_CHANGES = (
    "float8", "int8", "bool", "complex", "float64", "half", "transpose", "flatten", "expand",
    "empty", "scalar", "sparse", "none", "text", "number", "list", "rename", "remove", "nan",
    "huge", "quantized", "parameter",
)  # fmt: skip


# --- random edits ---------------------------------------------------------------------------


def random_edits(path: Path, rng: random.Random) -> list[Edit]:
    """One to four edits of a file, of the kinds that it has."""
    kinds: list[Callable[[Path, random.Random], Edit]] = [random_bytes]
    if path.suffix == ".json":
        kinds += [random_json] * 6
    elif path.suffix == ".safetensors":
        kinds += [random_header] * 3
    elif path.suffix == ".gguf":
        kinds += [random_metadata] * 4 + [random_tensor] * 2
    elif path.suffix == ".bin":
        kinds += [random_pickle] * 2
    elif path.suffix in (".txt", ".code", ".jinja"):
        kinds += [random_line] * 2
    kind = rng.choice(kinds)
    if kind is random_bytes:
        return [kind(path, rng) for _ in range(rng.choice((1, 1, 2, 4)))]
    # edits of one kind only, and each on the original: an index or a path stays valid
    return [kind(path, rng)]


def random_bytes(path: Path, rng: random.Random) -> Edit:
    size = path.stat().st_size
    # the beginning has the sizes and names
    at = rng.randrange(max(1, min(size, rng.choice((64, 512, 4096, size)))))
    kind = rng.randrange(7)
    if kind == 0:
        return ["truncate", at]
    if kind == 1:
        return ["delete", at, rng.choice((1, 4, 8, 100))]
    if kind == 2:
        return ["insert", at, rng.randbytes(rng.choice((1, 4, 8, 100))).hex()]
    if kind == 3:
        return ["bytes", at, U64.pack(rng.choice(HUGE)).hex()]
    if kind == 4:
        return ["bytes", at, U32.pack(rng.choice(HUGE) % 2**32).hex()]
    return ["bytes", at, rng.randbytes(rng.choice((1, 1, 1, 2))).hex()]


def random_json(path: Path, rng: random.Random) -> Edit:
    return json_edit(json.loads(path.read_text(encoding="utf-8")), "json", rng)


def random_header(path: Path, rng: random.Random) -> Edit:
    return json_edit(read_safetensors(path.read_bytes())[0], "header", rng)


def json_edit(values: Any, name: str, rng: random.Random) -> Edit:
    nodes = list(nodes_of(values))
    if not nodes:
        return ["insert", 0, b"[0, ".hex()]
    path = rng.choice(nodes if rng.random() < 0.5 else [n for n in nodes if len(n) == 1] or nodes)
    kind = rng.randrange(10)
    if kind == 0 and name == "json":
        return ["json delete", path]
    if kind == 1 and name == "json" and isinstance(path[-1], str):
        return ["json rename", path, rng.choice((path[-1] + "s", "x", ""))]
    if kind in (2, 3):
        return [name, path, look_up(values, rng.choice(nodes))]
    if kind in (4, 5):
        return [name, path, nearby(look_up(values, path), rng)]
    if kind == 6:
        return [name, path, {"$raw": rng.choice(RAW_VALUES)}]
    return [name, path, rng.choice(VALUES)]


def nearby(value: Any, rng: random.Random) -> Any:
    """A value of the same kind, or nearly."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int | float):
        changed = (value + 1, value - 1, value * 2, value // 2, -value, value * 1000, str(value))
        return rng.choice((*changed, float(value), [value]))
    if isinstance(value, str):
        return rng.choice((value + "x", value[:-1], value.upper(), [value], value * 2))
    if isinstance(value, list):
        return rng.choice((value[:-1], value * 2, value[::-1], [value], value[:1]))
    return {key: value[key] for key in list(value)[:-1]} if value else [value]


def nodes_of(values: Any, path: tuple[Any, ...] = (), limit: int = 400) -> list[list[Any]]:
    """Paths of the values below a value; of long lists and tables only some."""
    items = list(values.items()) if isinstance(values, dict) else list(enumerate(values))
    found: list[list[Any]] = []
    for key, value in items[:20] + items[-5:] if len(items) > 25 else items:
        found.append([*path, key])
        if isinstance(value, dict | list) and len(found) < limit:
            found += nodes_of(value, (*path, key), limit - len(found))
    return found


def random_metadata(path: Path, rng: random.Random) -> Edit:
    entries = parse_gguf(path.read_bytes()).entries
    index = rng.randrange(len(entries))
    kind = rng.choice(sorted(DTYPES))
    data = rng.choice((rng.randbytes(DTYPES[kind].itemsize), bytes(DTYPES[kind].itemsize)))
    choice = rng.randrange(5)
    if choice == 0:
        text = rng.choice(("", "x", "yarn", "llama", "a" * 5000, "\u2581")).encode()
        kind, data = 8, U64.pack(len(text)) + text
    elif choice == 1:
        count = rng.choice((0, 1, 2, 300))
        kind, data = 9, U32.pack(kind) + U64.pack(count) + data * count
    elif choice == 2:
        count = rng.choice((0, 1, 2, 300))
        kind, data = 9, U32.pack(8) + U64.pack(count) + (U64.pack(1) + b"a") * count
    elif choice == 3:
        kind = rng.choice((4, 5, 10, 11, 6))
        data = U64.pack(rng.choice(HUGE))[: DTYPES[kind].itemsize]
    if kind == 7:
        data = bytes([rng.randrange(2)])
    return ["metadata", index, kind, data.hex()]


def random_tensor(path: Path, rng: random.Random) -> Edit:
    tensors = parse_gguf(path.read_bytes()).tensors
    field = rng.choice(("rank", "type", "offset", "dimension"))
    number = {"rank": rng.randrange(6), "type": rng.randrange(42)}.get(field)
    if number is None:
        number = rng.choice((*HUGE, 16, 32, 48, 64, 96, 128, 1024))
    return ["tensor", rng.randrange(len(tensors)), field, number]


def random_pickle(path: Path, rng: random.Random) -> Edit:
    names = sorted(torch.load(path, weights_only=True, map_location="cpu"))
    return ["pickle", rng.choice(names), rng.choice(PICKLE_CHANGES)]


def random_line(path: Path, rng: random.Random) -> Edit:
    lines = path.read_text(encoding="utf-8").split("\n")
    other = rng.choice(lines)
    text = rng.choice((None, other, other + other, *LINES))
    return ["line", rng.randrange(len(lines)), text]


# --- applying them --------------------------------------------------------------------------


def apply_edits(path: Path, edits: list[Edit]) -> None:
    for name, *arguments in edits:
        if name == "pickle":
            edit_pickle(path, *arguments)
        elif name.startswith("json"):
            text = path.read_text(encoding="utf-8")
            path.write_text(edit_json(text, name, *arguments), encoding="utf-8")
        else:
            path.write_bytes(BINARY_EDITS[name](path.read_bytes(), *arguments))


def overwrite(data: bytes, at: int, content: str) -> bytes:
    new = bytes.fromhex(content)
    return data[:at] + new + data[at + len(new) :]


def edit_line(data: bytes, number: int, text: str | None) -> bytes:
    lines = data.decode("utf-8").split("\n")
    lines[number : number + 1] = [] if text is None else [text]
    return "\n".join(lines).encode("utf-8")


def edit_json(text: str, name: str, path: list[Any], *value: Any) -> str:
    values = json.loads(text)
    parent, key = look_up(values, path[:-1]), path[-1]
    if name == "json delete":
        del parent[key]
    elif name == "json rename":
        parent[value[0]] = parent.pop(key)
    else:
        return dump_with_raw(values, parent, key, value[0])
    return json.dumps(values, ensure_ascii=False)


def dump_with_raw(values: Any, parent: Any, key: Any, value: Any) -> str:
    """JSON with a value, or with a text in place of a value."""
    is_raw = isinstance(value, dict) and list(value) == ["$raw"]
    parent[key] = "$raw$" if is_raw else value
    text = json.dumps(values, ensure_ascii=False)
    return text.replace('"$raw$"', value["$raw"]) if is_raw else text


def edit_header(data: bytes, path: list[Any], value: Any) -> bytes:
    header, tensors = read_safetensors(data)
    text = dump_with_raw(header, look_up(header, path[:-1]), path[-1], value).encode("utf-8")
    return U64.pack(len(text)) + text + tensors


def read_safetensors(data: bytes) -> tuple[dict[str, Any], bytes]:
    size = U64.unpack_from(data)[0]
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def look_up(values: Any, path: list[Any]) -> Any:
    for key in path:
        values = values[key]
    return values


class GGUFParts:
    """The bytes of a GGUF file in parts: entries (key, value with its type) and tensors."""

    def __init__(self, data: bytes) -> None:
        cursor = HeaderCursor(data, Path("base.gguf"))
        read_version(cursor)
        num_tensors, num_entries = cursor.u64("tensors"), cursor.u64("entries")
        self.start = data[: cursor.at]
        metadata: dict[str, Any] = {}
        self.entries: list[tuple[bytes, bytes]] = []
        for _ in range(num_entries):
            first = cursor.at
            key = cursor.string("key")
            middle = cursor.at
            metadata[key] = cursor.value(cursor.u32("type"), key)
            self.entries.append((data[first:middle], data[middle : cursor.at]))
        self.tensors: list[tuple[bytes, list[int], int, int]] = []
        for _ in range(num_tensors):
            first = cursor.at
            cursor.string("name")
            name = data[first : cursor.at]
            dimensions = [cursor.u64("dimension") for _ in range(cursor.u32("rank"))]
            self.tensors.append((name, dimensions, cursor.u32("type"), cursor.u64("offset")))
        self.alignment = read_alignment(metadata, cursor.path)
        self.data = data[-(-cursor.at // self.alignment) * self.alignment :]

    def to_bytes(self) -> bytes:
        head = self.start + b"".join(key + value for key, value in self.entries)
        for name, dimensions, kind, offset in self.tensors:
            head += name + U32.pack(len(dimensions)) + b"".join(map(U64.pack, dimensions))
            head += U32.pack(kind) + U64.pack(offset)
        return head + b"\0" * (-len(head) % self.alignment) + self.data


def parse_gguf(data: bytes) -> GGUFParts:
    return GGUFParts(data)


def edit_metadata(data: bytes, index: int, kind: int, content: str) -> bytes:
    parts = GGUFParts(data)
    parts.entries[index] = (parts.entries[index][0], U32.pack(kind) + bytes.fromhex(content))
    return parts.to_bytes()


def edit_tensor(data: bytes, index: int, field: str, number: int) -> bytes:
    parts = GGUFParts(data)
    name, dimensions, kind, offset = parts.tensors[index]
    if field == "rank":
        dimensions = (dimensions * 5)[:number]
    elif field == "dimension":
        dimensions = [number, *dimensions[1:]]
    elif field == "type":
        kind = number
    else:
        offset = number
    parts.tensors[index] = (name, dimensions, kind, offset)
    return parts.to_bytes()


BINARY_EDITS: dict[str, Callable[..., bytes]] = {
    "bytes": overwrite,
    "insert": lambda data, at, content: data[:at] + bytes.fromhex(content) + data[at:],
    "delete": lambda data, at, count: data[:at] + data[at + count :],
    "truncate": lambda data, length: data[:length],
    "header": edit_header,
    "metadata": edit_metadata,
    "tensor": edit_tensor,
    "line": edit_line,
}


def edit_pickle(path: Path, name: str, change: str) -> None:
    tensors: dict[Any, Any] = torch.load(path, weights_only=True, map_location="cpu")
    tensor = tensors[name]
    casts = {"float8": torch.float8_e4m3fn, "int8": torch.int8, "bool": torch.bool}
    casts |= {"complex": torch.complex64, "float64": torch.float64, "half": torch.float16}
    if change in casts:
        tensors[name] = tensor.to(casts[change])
    elif change == "rename":
        tensors[7] = tensors.pop(name)
    elif change == "remove":
        del tensors[name]
    else:
        tensors[name] = PICKLE_VALUES[change](tensor)
    torch.save(tensors, path)


PICKLE_VALUES: dict[str, Callable[[torch.Tensor], Any]] = {
    "transpose": lambda tensor: tensor.T if tensor.ndim == 2 else tensor[None],
    "flatten": torch.Tensor.flatten,
    "expand": lambda tensor: tensor.flatten()[:1].expand(2**40),
    "empty": lambda tensor: tensor[:0],
    "scalar": lambda tensor: tensor.sum(),
    "sparse": lambda tensor: tensor.to_sparse(),
    "none": lambda tensor: None,
    "text": lambda tensor: "weights",
    "number": lambda tensor: 1.5,
    "list": lambda tensor: [tensor],
    "nan": lambda tensor: tensor * float("nan"),
    "huge": lambda tensor: tensor.double() * 1e300,
    "quantized": lambda tensor: torch.quantize_per_tensor(tensor.float(), 0.1, 0, torch.qint8),
    "parameter": lambda tensor: torch.nn.Parameter(tensor.float()),
}
