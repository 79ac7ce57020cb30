"""Two trees of files -> how they differ, apart from what depends on time."""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter
from pathlib import PurePosixPath

from .filesystem import Tree

TIME_FIELDS = {"seconds", "elapsed", "tokens_per_second"}
TIMED_FILES = ("scores.json", "state.json")
"""Files with such fields, apart from metrics.jsonl."""
TEMPORARY = re.compile(r"^\.new-|\.\d+(-\w+)?\.new$|^\.tmp\w{6}$")
"""Names of files and folders that are being written; .tmpXXXXXX are those of safetensors."""
MAX_LISTED = 4
"""Differences of two trees that are listed."""
LOCK = re.compile(r"^\..*lock$")


def is_leftover(path: str) -> bool:
    """A temporary file, a file in a temporary folder, or a lock."""
    parts = PurePosixPath(path).parts
    return any(TEMPORARY.search(part) or LOCK.search(part) for part in parts)


def differences(expected: Tree, actual: Tree) -> list[str]:
    """One sentence for each path that is missing, left over or of another content."""
    wrong = [f"{path} is missing" for path in sorted(expected.keys() - actual.keys())]
    wrong += [f"{path} is left over" for path in sorted(actual.keys() - expected.keys())]
    for path in sorted(expected.keys() & actual.keys()):
        before, now = comparable(path, expected[path]), comparable(path, actual[path])
        if before != now:
            wrong.append(f"{path} differs: {brief(now)} instead of {brief(before)}")
    wrong += repeated_steps(actual)
    more = [f"and {len(wrong) - MAX_LISTED} more"] if len(wrong) > MAX_LISTED else []
    return wrong[:MAX_LISTED] + more


def repeated_steps(tree: Tree) -> list[str]:
    """Steps that metrics.jsonl contains more than once."""
    wrong = []
    for path, content in tree.items():
        if PurePosixPath(path).name == "metrics.jsonl" and isinstance(content, bytes):
            lines = [json.loads(line) for line in content.splitlines()]
            counts = Counter((line["step"], "valid_loss" in line) for line in lines)
            wrong += [f"{path}: step {step} twice" for (step, _), n in counts.items() if n > 1]
    return wrong


def comparable(path: str, content: bytes | str | None) -> object:
    """The content without the values that depend on time."""
    name = PurePosixPath(path).name
    if not isinstance(content, bytes):
        return content
    try:
        if name == "metrics.jsonl":
            return [without_times(json.loads(line)) for line in content.splitlines()]
        if name == "README.md":
            return re.sub(rb"[\d,.]+ s;", b"", content)
        if name in TIMED_FILES:
            return without_times(json.loads(content))
        if name == "SHA256SUMS":
            lines = content.decode().splitlines()
            return [line for line in lines if not line.endswith(TIMED_FILES)]
        if content[8:9] == b"{" and b'"sums"' in content:  # a cache file, under any name
            return without_last_use(content)
        if LOCK.search(name):
            return "a process, a host and a time"
    except (ValueError, LookupError, zlib.error):
        return content  # damaged
    return content


def without_times(values: dict) -> dict:
    return {key: value for key, value in values.items() if key not in TIME_FIELDS}


def without_last_use(content: bytes) -> object:
    """A cache file apart from when its pages were used."""
    size = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + size]), content[8 + size :]
    metadata = header.pop("__metadata__")
    sums = json.loads(metadata.pop("sums"))
    values = {name: data[slice(*entry["data_offsets"])] for name, entry in header.items()}
    index = json.loads(zlib.decompress(values.pop("index")))
    entries = [entry[:-1] for entry in (*index["runs"], *index["sources"])]
    del sums["index"]
    return metadata, sums, entries, values


def brief(value: object) -> str:
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    return f"{str(value)[:100]}"


def with_common_names(tree: Tree) -> dict[str, list[object]]:
    """The comparable contents by path, where temporary names, which contain process ids, are *."""
    contents: dict[str, list[object]] = {}
    for path, content in sorted(tree.items()):
        contents.setdefault(common_name(path), []).append(comparable(path, content))
    return contents


def common_name(path: str) -> str:
    """A path with temporary names as *."""
    parts = PurePosixPath(path).parts
    return "/".join("*" if TEMPORARY.search(part) else part for part in parts)
