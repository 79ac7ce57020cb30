"""Token -> the bytes of text it stands for, in any tokenizer.json.

Text that is cut inside a character has no characters to show, only bytes; joining the bytes of
all tokens gives the text in UTF-8. Four ways to write bytes are known: <0xE8> (ours, and
SentencePiece's), the printable alphabet of GPT-2, a marker in place of the space, and one behind
the end of a word (fairseq's), which gives a text's last word a space that `decode` leaves out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from tokenizers import Tokenizer as Backend

BYTE_NAME = re.compile(r"<0x([0-9A-F]{2})>")


def byte_reader(backend: Backend) -> Callable[[str], bytes]:
    """The function from a token of this tokenizer to its bytes, chosen by its decoder."""
    settings = json.loads(backend.to_str()).get("decoder") or {}
    decoder = json.dumps(settings)
    if '"ByteLevel"' in decoder:
        return from_gpt2
    if settings.get("type") == "BPEDecoder":
        return lambda token: from_ended(token, settings["suffix"])
    marker = "\u2581" if '"Metaspace"' in decoder or "\\u2581" in decoder else None
    return lambda token: from_name(token, marker)


def from_name(token: str, marker: str | None = None) -> bytes:
    """<0xE8> is that byte; anything else is its own text, with spaces where the marker stands."""
    found = BYTE_NAME.fullmatch(token)
    if found:
        return bytes([int(found[1], 16)])
    return (token if marker is None else token.replace(marker, " ")).encode()


def from_ended(token: str, mark: str) -> bytes:
    """A token that ends a word has the mark behind it, where the text has a space."""
    is_end = token.endswith(mark)
    return (token.removesuffix(mark) + " " if is_end else token).encode()


def from_gpt2(token: str) -> bytes:
    """Each letter is one byte; a token with other letters (a special one) is its own text."""
    if all(letter in GPT2_BYTES for letter in token):
        return bytes(GPT2_BYTES[letter] for letter in token)
    return token.encode()


def gpt2_alphabet() -> dict[str, int]:
    """Printable bytes stand for themselves; the others are the letters from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(0x100 + index): byte for index, byte in enumerate(others)}


GPT2_BYTES = gpt2_alphabet()
