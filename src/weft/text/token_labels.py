"""Token ids -> readable text.

A byte-level tokenizer writes its vocabulary in an alphabet of its own, in which " the" is spelled
with U+0120 in place of the space. Here each token is decoded from its bytes; bytes that are not
whole characters are written as <0xE8>, the notation of SentencePiece.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from weft.text.tokenizer import Tokenizer


def token_labels(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """The text of each token; a UsageError for an id outside the vocabulary."""
    contents = zip(tokenizer.token_bytes(ids), tokenizer.pieces(ids), strict=True)
    return [content.decode("utf-8", "weft.bytes") or piece for content, piece in contents]


def token_label(tokenizer: Tokenizer, index: int) -> str:
    """The text of one token; "" for an id that the tokenizer does not have, as some models round
    the size of the vocabulary up."""
    return token_labels(tokenizer, [index])[0] if index < tokenizer.vocab_size else ""


def name_bytes(error: UnicodeError) -> tuple[str, int]:
    """The error handler of decoding: invalid bytes as <0xE8>."""
    assert isinstance(error, UnicodeDecodeError), f"{error!r} is not about decoding"
    invalid = error.object[error.start : error.end]
    return "".join(f"<0x{byte:02X}>" for byte in invalid), error.end


codecs.register_error("weft.bytes", name_bytes)
