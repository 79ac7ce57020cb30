"""`Tokenizer`: text <-> token ids. Wraps the `tokenizers` library; on disk it is a standard
tokenizer.json.

Differs from the bare library: text that spells a special token stays text unless requested (no
prompt can inject an end token), truncation is counted and logged, BPE-dropout is seeded, and every
special token is known by its role.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Encoding
from tokenizers import Tokenizer as Backend

from weft.core.errors import DataError, UsageError, shortened
from weft.text.bpe_dropout import BpeDropout
from weft.text.corpus import Source, read_many
from weft.text.encoding import TextReport, check_encodable, truncate
from weft.text.special_tokens import Role, SpecialTokens, find_special_tokens
from weft.text.tokenizer_files import is_library_error, load_files, save_files
from weft.text.tokenizer_names import TARGET_FOLDER, TOKENIZER_FILE
from weft.text.tokenizer_training import TokenizerConfig, train_backend

MAX_VOCAB_SIZE = 1 << 24
"""Sixty times the largest vocabulary in use."""
BYTE_NAME = re.compile(r"<0x([0-9A-F]{2})>")

Offset = tuple[int, int]
"""First character, and one past the last; equal for a token that is not in the text."""


class Tokenizer:
    """Text <-> token ids. Immutable, except for the counts in `report`."""

    def __init__(
        self,
        backend: Backend,
        special_tokens: SpecialTokens | None = None,
        config: TokenizerConfig | None = None,
        target: Tokenizer | None = None,
        max_len: int | None = None,
    ) -> None:
        self.backend = backend
        self.special_tokens = special_tokens or find_special_tokens(backend, {})
        self.config = config
        """The settings it was trained with; None for tokenizers that Weft did not train."""
        self.target: Tokenizer = target or self
        """The tokenizer of the output: a different one only in translation models whose two sides
        have different tokenizers."""
        self.max_len = max_len or (config.max_len if config else None)
        """Longer texts are truncated, unless `encode` gets another length."""
        self.report = TextReport()
        """Counts of everything that is encoded without a report argument."""
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = True

    def __repr__(self) -> str:
        kind = type(self.backend.model).__name__
        target = "" if self.target is self else f", target={self.target!r}"
        length = f", max_len {self.max_len:,}" if self.max_len else ""
        return f"Tokenizer({kind}, {self.vocab_size:,} tokens{length}{target})"

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[Any, ...]]:
        """Copies in other processes have their own counts."""
        target = None if self.target is self else self.target
        return Tokenizer, (self.backend, self.special_tokens, self.config, target, self.max_len)

    @classmethod
    def train(cls, lines: Iterable[str], config: TokenizerConfig | None = None) -> Tokenizer:
        """Train on lines, which are read once and may be any number."""
        config = config or TokenizerConfig()
        names = (config.pad, config.begin, config.end, config.unknown, config.mask)
        return cls(train_backend(lines, config), SpecialTokens(*names), config)

    @classmethod
    def train_files(
        cls, files: Iterable[Source], config: TokenizerConfig | None = None
    ) -> Tokenizer:
        """Train on text files, plain or gzip, one document a line."""
        return cls.train(read_many(files), config)

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Load from a folder with a tokenizer.json, or from such a file."""
        target = Path(path) / TARGET_FOLDER
        has_target = (target / TOKENIZER_FILE).is_file()
        return cls(*load_files(Path(path)), cls.load(target) if has_target else None)

    def with_max_len(self, max_len: int | None) -> Tokenizer:
        """The same tokenizer with another truncation length; None: unchanged."""
        target = None if self.target is self else self.target
        parts = (self.backend, self.special_tokens, self.config, target)
        return self if max_len is None else Tokenizer(*parts, max_len)

    def save(self, path: str | Path) -> Path:
        """Write a folder (tokenizer.json, tokenizer_config.json) or, for a name in .json, that
        file; returns the path of the tokenizer.json. A target tokenizer is a sub-folder."""
        if self.target is not self:
            if Path(path).suffix == ".json":
                raise UsageError(
                    f"{path} is one file, but this tokenizer has two sides. Name a folder."
                )
            self.target.save(Path(path) / TARGET_FOLDER)
        return save_files(Path(path), self.backend, self.special_tokens, self.config)

    def encode(
        self,
        text: str,
        add_special: bool = True,
        max_len: int | None = None,
        parse_special: bool = False,
        report: TextReport | None = None,
    ) -> list[int]:
        """Ids of one text; see `encode_batch`."""
        return self.encode_batch([text], add_special, max_len, parse_special, report)[0]

    def encode_batch(
        self,
        texts: Sequence[str],
        add_special: bool = True,
        max_len: int | None = None,
        parse_special: bool = False,
        report: TextReport | None = None,
        dropout: float = 0.0,
        rng: random.Random | None = None,
    ) -> list[list[int]]:
        """Ids of each text, with begin and end if `add_special`, at most `max_len` ids in total.

        `parse_special`: "<end>" in the text is the special token, as chat templates need it.
        `dropout`: BPE-dropout with draws from `rng` (see bpe_dropout).
        """
        bodies = self.encode_bodies(texts, parse_special, dropout, rng)
        frame = self.frame if add_special else ([], [])
        limit = self.max_len if max_len is None else max_len
        return truncate(bodies, frame, limit, self.unknown_id, report or self.report)

    def encode_bodies(
        self,
        texts: Sequence[str],
        parse_special: bool,
        dropout: float,
        rng: random.Random | None,
    ) -> list[list[int]]:
        """Ids of each text without truncation, begin and end."""
        check_encodable(texts)
        if dropout:
            if rng is None or not 0 < dropout <= 1:
                raise UsageError(
                    f"dropout is {dropout} with rng={rng}: it must be between 0 and 1 and needs "
                    "a random.Random. Give rng=random.Random(seed)."
                )
            return [self.bpe_dropout.encode(text, dropout, rng) for text in texts]
        backend = self.parsing_backend if parse_special else self.backend
        with library_errors():
            return [e.ids for e in backend.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of ids. Exact for the output of `encode`, unless the text was normalized,
        truncated or had unknown tokens. Ids are those of the target tokenizer."""
        target, numbers = self.target, self.target.check_ids(ids)
        with library_errors():
            return str(target.backend.decode(numbers, skip_special_tokens=skip_special))

    def decode_batch(self, batch: Iterable[Sequence[int]], skip_special: bool = True) -> list[str]:
        return [self.decode(ids, skip_special) for ids in batch]

    def tokens(self, text: str, add_special: bool = True) -> Tokens:
        """Ids, pieces and character offsets; never truncated."""
        check_encodable([text])
        with library_errors():
            return with_offsets(self.backend.encode(text, add_special_tokens=add_special), text)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The vocabulary entry of each id: ' the', '<0xE8>', '<end>'."""
        return [self.backend.id_to_token(index) or "" for index in self.check_ids(ids)]

    def token_bytes(self, ids: Sequence[int]) -> list[bytes]:
        """The UTF-8 bytes of text that each id stands for; a special token gives its name."""
        return [self.bytes_of_piece(piece) for piece in self.pieces(ids)]

    def check_ids(self, ids: Sequence[int]) -> list[int]:
        """The ids as a list of int; raises a UsageError for one outside the vocabulary."""
        numbers = [int(index) for index in ids]
        if numbers and not (min(numbers) >= 0 and max(numbers) < self.vocab_size):
            wrong = next(index for index in numbers if not 0 <= index < self.vocab_size)
            raise UsageError(
                f"id {wrong} is not in the vocabulary: ids go from 0 to {self.vocab_size - 1}. "
                "Use the tokenizer that the ids were made with."
            )
        return numbers

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest id: the number of rows of an embedding. A DataError for an id
        that no model has, because lists and tables of this size are made from it."""
        size = max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        if size > MAX_VOCAB_SIZE:
            raise DataError(
                f"the tokenizer has a token with id {size - 1}: at most {MAX_VOCAB_SIZE - 1} is "
                "allowed. Correct its tokenizer.json."
            )
        return size

    @cached_property
    def frame(self) -> tuple[list[int], list[int]]:
        """The ids that `add_special` puts before and after a text."""
        with library_errors():
            framed = self.backend.encode("a")
            body = self.backend.encode("a", add_special_tokens=False).ids
        for start in range(len(framed.ids) - len(body) + 1):
            if framed.ids[start : start + len(body)] == body and body:
                return framed.ids[:start], framed.ids[start + len(body) :]
        return framed.ids, []

    @cached_property
    def parsing_backend(self) -> Backend:
        """The same backend, but special tokens in the text are parsed."""
        return Backend.from_str(self.backend.to_str())

    @cached_property
    def bpe_dropout(self) -> BpeDropout:
        return BpeDropout(self.backend)

    @cached_property
    def bytes_of_piece(self) -> Callable[[str], bytes]:
        return piece_to_bytes(self.backend)

    def id_of(self, role: Role) -> int:
        """The id of a role; raises a UsageError if there is none."""
        token_id = self.find_id(role)
        if token_id is None:
            raise UsageError(
                f"this tokenizer has no {role} token, which is needed here. Name it in its "
                "tokenizer_config.json, or use another tokenizer."
            )
        return token_id

    def find_id(self, role: Role) -> int | None:
        name: str | None = getattr(self.special_tokens, role)
        return None if name is None else self.backend.token_to_id(name)

    @cached_property
    def pad_id(self) -> int | None:
        return self.find_id("pad")

    @cached_property
    def begin_id(self) -> int | None:
        return self.find_id("begin")

    @cached_property
    def end_id(self) -> int | None:
        return self.find_id("end")

    @cached_property
    def unknown_id(self) -> int | None:
        return self.find_id("unknown")

    @cached_property
    def mask_id(self) -> int | None:
        return self.find_id("mask")


@contextmanager
def library_errors() -> Iterator[None]:
    """Errors of the `tokenizers` library as DataErrors: the tokenizer contradicts itself."""
    try:
        yield
    except BaseException as error:
        if not is_library_error(error):
            raise
        raise DataError(
            f"the tokenizer cannot be used ({shortened(error)}). Use the files of one tokenizer."
        ) from None


# --- offsets: the characters that each token covers -----------------------------------------


@dataclass(frozen=True)
class Tokens:
    """The tokens of one text: three lists of equal length."""

    ids: list[int]
    pieces: list[str]
    offsets: list[Offset]


def with_offsets(encoding: Encoding, text: str) -> Tokens:
    """The tokens of an encoding. A byte token covers the whole character it is part of.

    Differs from the library, whose unigram model gives every byte of a run the offset of the whole
    run.
    """
    offsets: list[Offset] = list(encoding.offsets)
    for start, stop in byte_runs(encoding.tokens, offsets):
        offsets[start:stop] = byte_offsets(text, offsets[start], stop - start)
    return Tokens(list(encoding.ids), list(encoding.tokens), offsets)


def byte_runs(pieces: list[str], offsets: list[Offset]) -> Iterator[tuple[int, int]]:
    """Index ranges of consecutive byte tokens that share an offset of several characters."""
    start = 0
    for index in range(1, len(pieces) + 1):
        if index < len(pieces) and offsets[index] == offsets[start] and is_byte(pieces[index]):
            continue
        if is_byte(pieces[start]) and offsets[start][1] - offsets[start][0] > 1:
            yield start, index
        start = index


def is_byte(piece: str) -> bool:
    return BYTE_NAME.fullmatch(piece) is not None


def byte_offsets(text: str, offset: Offset, num_bytes: int) -> list[Offset]:
    """One offset per byte. If normalization changed the number of bytes, all keep the whole
    range."""
    exact = [(i, i + 1) for i in range(*offset) for _ in text[i].encode()]
    return exact if len(exact) == num_bytes else [offset] * num_bytes


# --- token bytes: the UTF-8 bytes that each token stands for --------------------------------


def piece_to_bytes(backend: Backend) -> Callable[[str], bytes]:
    """The function from a piece of this tokenizer to its bytes, chosen by its decoder.

    A token may end inside a character, so only its bytes are well defined; the bytes of all tokens
    joined are the text in UTF-8. Four notations are known: <0xE8> (Weft, SentencePiece), the
    printable alphabet of GPT-2, a marker in place of the space, and a marker at the end of a word
    (fairseq), where the last word of a text gets a space that `decode` leaves out.
    """
    settings = json.loads(backend.to_str()).get("decoder") or {}
    decoder = json.dumps(settings)
    if '"ByteLevel"' in decoder:
        return bytes_of_gpt2_piece
    if settings.get("type") == "BPEDecoder":
        return lambda piece: bytes_of_marked_end(piece, settings["suffix"])
    marker = "\u2581" if '"Metaspace"' in decoder or "\\u2581" in decoder else None
    return lambda piece: bytes_of_plain_piece(piece, marker)


def bytes_of_plain_piece(piece: str, marker: str | None = None) -> bytes:
    """<0xE8> is that byte; other pieces are their text, with a space for each marker."""
    match = BYTE_NAME.fullmatch(piece)
    if match:
        return bytes([int(match[1], 16)])
    return (piece if marker is None else piece.replace(marker, " ")).encode()


def bytes_of_marked_end(piece: str, marker: str) -> bytes:
    """A piece that ends a word has a marker at its end, where the text has a space."""
    is_end = piece.endswith(marker)
    return (piece.removesuffix(marker) + " " if is_end else piece).encode()


def bytes_of_gpt2_piece(piece: str) -> bytes:
    """Each letter is one byte; a piece with other letters (a special token) is its own text."""
    if all(letter in GPT2_BYTES for letter in piece):
        return bytes(GPT2_BYTES[letter] for letter in piece)
    return piece.encode()


def gpt2_alphabet() -> dict[str, int]:
    """Printable bytes are their own letter; the others are the letters from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(0x100 + index): byte for index, byte in enumerate(others)}


GPT2_BYTES = gpt2_alphabet()
