"""SentencePiece's precompiled_charsmap: checked before the library walks through it.

It is a trie (a double array of 32-bit units) and behind it the texts that its leaves point to, each
with a zero byte at its end. The library follows the numbers without asking whether they are inside;
here every step that it could take is looked at once.
"""

from __future__ import annotations

import numpy as np

from weft.text.foreign.wire import WireError


def check_charsmap(charsmap: bytes) -> None:
    """A WireError where a step through the trie would lead outside of it or of the texts."""
    if not charsmap:
        return
    size = int.from_bytes(charsmap[:4], "little")
    if len(charsmap) < 4 or size == 0 or size % 4 or size > len(charsmap) - 4:
        raise WireError(f"its charsmap of {len(charsmap)} bytes has a trie of {size}")
    units = np.frombuffer(charsmap, dtype="<u4", count=size // 4, offset=4).astype(np.int64)
    texts = charsmap[4 + size :]
    try:
        texts.decode()
    except UnicodeDecodeError:
        raise WireError("the texts of its charsmap are not UTF-8") from None
    if not steps_inside(units) or not leaves_inside(units, np.frombuffer(texts, dtype=np.uint8)):
        raise WireError("its charsmap points outside of itself")


def inner_nodes(units: np.ndarray) -> np.ndarray:
    """The places of all units that are not values; only those are ever stepped on."""
    return np.flatnonzero(units < 1 << 31)


def children(units: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """Where the child of each node is for byte 0; for another byte the low 8 bits differ."""
    found: np.ndarray = nodes ^ offsets(units[nodes])
    return found


def offsets(units: np.ndarray) -> np.ndarray:
    """22 bits, which count blocks of 256 where bit 9 is set."""
    moved: np.ndarray = (units >> 10) << ((units & (1 << 9)) >> 6)
    return moved


def steps_inside(units: np.ndarray) -> bool:
    return bool((children(units, inner_nodes(units)) | 0xFF < len(units)).all())


def leaves_inside(units: np.ndarray, texts: np.ndarray) -> bool:
    """Each value is the place of the first byte of a character in the texts."""
    nodes = inner_nodes(units)
    leaves = units[children(units, nodes[(units[nodes] >> 8) & 1 == 1])]
    values = leaves & 0x7FFFFFFF
    if not len(values):
        return True
    if values.max() >= len(texts):
        return False
    return bool((texts[values] & 0xC0 != 0x80).all())
