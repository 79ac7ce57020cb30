"""SentencePiece's .model file -> its pieces and settings, checked.

The numbers of the fields are those of sentencepiece_model.proto; fields that encoding does not need
are passed over. What the `tokenizers` library cannot do as SentencePiece does it is refused here.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from weft.core.errors import DataError
from weft.text.foreign.charsmap import check_charsmap
from weft.text.foreign.wire import WireError, as_bytes, as_float, as_int, as_text, fields

MAX_FILE_BYTES = 1 << 27
TIKTOKEN_LINE = re.compile(rb"[A-Za-z0-9+/]+=* \d+\n")
ALGORITHMS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}


class Kind(IntEnum):
    """What a piece is for."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Piece:
    text: str
    score: float
    kind: Kind


@dataclass(frozen=True)
class SentencePieceFile:
    """Everything of a .model file that encoding depends on."""

    pieces: tuple[Piece, ...]
    """The index of a piece is its id."""
    algorithm: str = "unigram"
    byte_fallback: bool = False
    begin_id: int = 1
    end_id: int = 2
    pad_id: int = -1
    charsmap: bytes = b""
    """Empty: text is not normalised."""
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True

    @property
    def unknown_id(self) -> int:
        return next(i for i, piece in enumerate(self.pieces) if piece.kind == Kind.UNKNOWN)

    def name_of(self, index: int) -> str | None:
        """The piece with an id; None: there is none."""
        return self.pieces[index].text if 0 <= index < len(self.pieces) else None


TRAINER = {3: "algorithm", 35: "byte_fallback", 41: "begin_id", 42: "end_id", 43: "pad_id"}
NORMALIZER = {2: "charsmap", 3: "add_dummy_prefix", 4: "remove_extra_whitespaces"}
WHITESPACE_AS_SUFFIX, ESCAPE_WHITESPACES = 24, 5


def read_sentencepiece(path: Path) -> SentencePieceFile:
    """The file, or a DataError that says what is wrong with it."""
    if path.stat().st_size > MAX_FILE_BYTES:
        raise DataError(f"is larger than {MAX_FILE_BYTES >> 20} MiB, too large for pieces.", path)
    data = path.read_bytes()
    if TIKTOKEN_LINE.match(data):
        raise DataError(
            "is a tiktoken file, which does not say how text is cut. Put the tokenizer.json of "
            "this model beside it.",
            path,
        )
    try:
        file = parse(data)
        check(file)
        check_charsmap(file.charsmap)
    except WireError as error:
        raise DataError(
            f"is not a SentencePiece model that can be used ({error}). Fetch it again, or put a "
            "tokenizer.json beside it.",
            path,
        ) from None
    return file


def parse(data: bytes) -> SentencePieceFile:
    """A ModelProto; a WireError for other bytes."""
    pieces: list[Piece] = []
    settings: dict[str, Any] = {}
    for number, value in fields(data):
        if number == 1:
            pieces.append(parse_piece(as_bytes(value)))
        elif number == 2:
            settings |= parse_trainer(as_bytes(value))
        elif number == 3:
            settings |= parse_normalizer(as_bytes(value))
    return SentencePieceFile(tuple(pieces), **settings)


def parse_piece(data: bytes) -> Piece:
    text, score, kind = "", 0.0, Kind.NORMAL
    for number, value in fields(data):
        if number == 1:
            text = as_text(value)
        elif number == 2:
            score = as_float(value)
        elif number == 3:
            try:
                kind = Kind(as_int(value))
            except ValueError:
                raise WireError(f"piece {text!r} is of kind {value!r}") from None
    return Piece(text, score, kind)


def parse_trainer(data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, value in fields(data):
        if number == WHITESPACE_AS_SUFFIX and as_int(value):
            raise WireError("it writes spaces behind words, not before them")
        if number in TRAINER:
            found[TRAINER[number]] = as_int(value)
    if "algorithm" in found:
        found["algorithm"] = ALGORITHMS.get(found["algorithm"], str(found["algorithm"]))
    if "byte_fallback" in found:
        found["byte_fallback"] = bool(found["byte_fallback"])
    return found


def parse_normalizer(data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, value in fields(data):
        if number == ESCAPE_WHITESPACES and not as_int(value):
            raise WireError("it keeps spaces as they are")
        if number in NORMALIZER:
            is_map = NORMALIZER[number] == "charsmap"
            found[NORMALIZER[number]] = as_bytes(value) if is_map else bool(as_int(value))
    return found


def check(file: SentencePieceFile) -> None:
    """A WireError for pieces that no encoder can use, or that ours would use wrongly."""
    if file.algorithm not in ("unigram", "bpe"):
        raise WireError(f"its algorithm is {file.algorithm!r}, not 'unigram' or 'bpe'")
    if sum(piece.kind == Kind.UNKNOWN for piece in file.pieces) != 1:
        raise WireError(f"not one of its {len(file.pieces)} pieces is the unknown one, or several")
    seen: set[str] = set()
    for piece in file.pieces:
        if not piece.text or piece.text in seen:
            raise WireError(f"piece {piece.text!r} is empty or twice there")
        if not math.isfinite(piece.score):
            raise WireError(f"the score of piece {piece.text!r} is {piece.score}")
        if piece.kind == Kind.UNUSED:
            raise WireError(f"piece {piece.text!r} is marked as unused")
        seen.add(piece.text)
    if file.byte_fallback and not {f"<0x{byte:02X}>" for byte in range(256)} <= seen:
        raise WireError("it spells unknown characters in bytes, but not all bytes are pieces")
