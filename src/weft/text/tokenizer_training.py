"""Tokenizer training: `TokenizerConfig` and lines -> a backend of the `tokenizers` library.

Memory stays constant as the corpus grows: lines are streamed once, `LineSample` keeps a bounded
sample of them on disk, and the words that a kind counts in it have a bounded length.
"""

from __future__ import annotations

import logging
import random
import re
import struct
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO, Literal

from pydantic import Field
from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from tokenizers import Tokenizer as Backend

from weft.core.config import Config
from weft.core.errors import ConfigError, DataError, Problem
from weft.core.registry import pick
from weft.text.tokenizer_kinds import BYTE_NAMES, KINDS, TokenizerPlan

log = logging.getLogger(__name__)

SPECIAL_FORM = re.compile(r"[^\w\s]+[^\W_](.*\S)?", re.DOTALL)
"""Punctuation followed by a letter: pre-tokenization splits text there, so that no ordinary token
has this form."""
MAX_RECORD = 1 << 16
"""Characters of one record of a sample: longer lines are stored in parts, so that one line cannot
fill the sample."""
HEADER = struct.Struct("<I")


class TokenizerConfig(Config):
    """How a tokenizer is trained and how it treats text."""

    kind: str = "bpe"
    """character, word, bpe, unigram or byte."""
    vocab_size: int = Field(default=8000, ge=1)
    """Maximum number of ids, special tokens included. byte: always the 256 bytes and the special
    tokens."""
    min_frequency: int = Field(default=2, ge=1)
    """A character, word or merged pair must occur this often in the training text."""
    normalise: Literal["none", "nfc", "nfkc"] = "none"
    """Unicode normalization before encoding. none: decoding gives the exact text. nfc: characters
    with accents are composed. nfkc: compatible characters such as wide letters are unified too."""
    lowercase: bool = False
    """True: text is lower-cased before it is encoded."""
    byte_fallback: bool | None = None
    """Encode what is not in the vocabulary as bytes. None: yes, but not for kind word."""
    max_len: int | None = Field(default=None, ge=1)
    """Truncate longer texts, begin and end included, and count them. None: never."""
    pad: str = "<pad>"
    """Text of the special token that fills up shorter rows of a batch."""
    begin: str = "<begin>"
    """Text of the special token before a text (BOS)."""
    end: str = "<end>"
    """Text of the special token after a text (EOS), which ends a generation."""
    unknown: str = "<unknown>"
    """Text of the special token for pieces that are not in the vocabulary."""
    mask: str = "<mask>"
    """Text of the special token that mlm training predicts the original of."""
    extra_special: tuple[str, ...] = ()
    """Further special tokens, such as "<de>" for a target language. They follow the five above."""
    add_begin: bool = True
    """Put the special token `begin` before every text that is encoded."""
    add_end: bool = True
    """Put the special token `end` after every text that is encoded."""
    sample_bytes: int = Field(default=16 << 20, ge=1 << 20)
    """Train on at most this much text, sampled uniformly from all lines."""
    seed: int = 0
    """Random seed of the sample of lines that the tokenizer is trained on."""

    @property
    def special(self) -> tuple[str, ...]:
        """All special tokens, in the order of their ids."""
        return (self.pad, self.begin, self.end, self.unknown, self.mask, *self.extra_special)

    @property
    def falls_back(self) -> bool:
        """Whether what is not in the vocabulary is encoded as bytes."""
        return KINDS[self.kind].byte_fallback if self.byte_fallback is None else self.byte_fallback

    @property
    def plan(self) -> TokenizerPlan:
        reserved = (*self.special, *(BYTE_NAMES if self.falls_back else ()))
        size = max(len(reserved), self.vocab_size)
        return TokenizerPlan(reserved, size, self.min_frequency, self.unknown, self.falls_back)

    def cross_checks(self) -> Iterable[Problem]:
        yield from self.special_problems()
        try:
            pick(KINDS, self.kind, "kind of tokenizer")
        except ConfigError as error:
            yield Problem(str(error), ("kind",))
            return
        if self.kind == "byte" and not self.falls_back:
            text = (
                "byte_fallback is False but kind is 'byte': bytes are all it has. "
                "Leave byte_fallback out."
            )
            yield Problem(text, ("kind", "byte_fallback"))
        elif self.kind != "byte" and self.vocab_size <= len(self.plan.reserved):
            yield self.vocab_size_problem()

    def vocab_size_problem(self) -> Problem:
        num_reserved = len(self.plan.reserved)
        and_bytes = " and the 256 bytes" if self.falls_back else ""
        advice = ", or set byte_fallback to False" if self.falls_back else ""
        return Problem(
            f"vocab_size is {self.vocab_size} but the special tokens{and_bytes} take "
            f"{num_reserved} ids: nothing could be learned. Use more than {num_reserved}{advice}.",
            ("vocab_size", "byte_fallback"),
        )

    def special_problems(self) -> Iterable[Problem]:
        """Special tokens must differ from each other and from every token of ordinary text."""
        for name in self.special:
            if not SPECIAL_FORM.fullmatch(name) or name in BYTE_NAMES:
                yield Problem(
                    f"special token {name!r} could be ordinary text: it must begin with "
                    "punctuation followed by a letter and must not name a byte. Write it like "
                    "'<name>'.",
                )
            elif self.special.count(name) > 1:
                text = f"special token {name!r} is used twice: each needs its own name. Rename one."
                yield Problem(text)


class LineSample:
    """A uniform sample of lines, bounded in bytes and stored in a temporary file.

    Every line is kept with probability `share`, which starts at 1. When the kept lines exceed the
    limit, a random half of them is dropped and `share` is halved, so that every line of the corpus
    still has the same probability. A reservoir in memory would do the same, but hold all of it. The
    sample depends only on the lines, their order, the limit and the seed. Iterating reads it from
    the start, in corpus order; closing it deletes the file.
    """

    def __init__(self, max_bytes: int, seed: int = 0) -> None:
        self.max_bytes = max_bytes
        self.random = random.Random(seed)
        self.share = 1.0
        self.seen_lines = self.kept_records = self.num_bytes = 0
        self.was_thinned = False
        self.file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115, closed by close()

    def fill(self, lines: Iterable[str]) -> LineSample:
        """Add all lines in order; afterwards at most `max_bytes` are kept."""
        for line in lines:
            self.seen_lines += 1
            for part in split_line(line):
                if self.share == 1.0 or self.random.random() < self.share:
                    self.append(part.encode("utf-8", "replace"))
        return self

    def append(self, record: bytes) -> None:
        self.file.write(HEADER.pack(len(record)))
        self.file.write(record)
        self.num_bytes += len(record)
        self.kept_records += 1
        while self.num_bytes > self.max_bytes and self.kept_records > 1:
            self.thin()

    def thin(self) -> None:
        """Keep a random half of the records."""
        old, self.file = self.file, tempfile.TemporaryFile()  # noqa: SIM115
        self.num_bytes = self.kept_records = 0
        self.share, self.was_thinned = self.share / 2, True
        with old:
            for record in read_records(old):
                if self.random.random() < 0.5:
                    self.file.write(HEADER.pack(len(record)) + record)
                    self.num_bytes += len(record)
                    self.kept_records += 1

    def __iter__(self) -> Iterator[str]:
        for record in read_records(self.file):
            yield record.decode("utf-8")

    def close(self) -> None:
        self.file.close()

    def __enter__(self) -> LineSample:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def read_records(file: IO[bytes]) -> Iterator[bytes]:
    """All records of a file from its start. The file position is at the end afterwards."""
    file.seek(0)
    while header := file.read(HEADER.size):
        yield file.read(HEADER.unpack(header)[0])


def split_line(line: str) -> Iterator[str]:
    """A line in parts of at most MAX_RECORD characters; an empty line has none."""
    for start in range(0, len(line), MAX_RECORD):
        yield line[start : start + MAX_RECORD]


def train_backend(lines: Iterable[str], config: TokenizerConfig) -> Backend:
    """Train a tokenizer on a sample of the lines, which are read once."""
    normalizer = build_normalizer(config)
    with LineSample(config.sample_bytes, config.seed) as sample:
        sample.fill(lines if normalizer is None else map(normalizer.normalize_str, lines))
        if sample.kept_records == 0:
            raise DataError(
                f"the {sample.seen_lines} lines to train a tokenizer on are all empty. "
                "Give it text."
            )
        if sample.was_thinned:
            log.warning(
                "tokenizer saw %d of %d lines (%d bytes; raise sample_bytes for more)",
                sample.kept_records, sample.seen_lines, sample.num_bytes,
            )  # fmt: skip
        model = KINDS[config.kind].learn(sample, config.plan)
    return build_backend(model, normalizer, config)


def build_backend(
    model: models.Model, normalizer: normalizers.Normalizer | None, config: TokenizerConfig
) -> Backend:
    """The pipeline: normalizer, pre-tokenizer, model, post-processor, decoder."""
    backend = Backend(model)
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(KINDS[config.kind].pattern), "isolated")
    backend.add_special_tokens(
        [AddedToken(name, special=True, normalized=False) for name in config.special]
    )
    backend.post_processor = build_post_processor(config)
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return backend


def build_normalizer(config: TokenizerConfig) -> normalizers.Normalizer | None:
    steps: list[normalizers.Normalizer] = []
    if config.normalise != "none":
        steps.append({"nfc": normalizers.NFC, "nfkc": normalizers.NFKC}[config.normalise]())
    if config.lowercase:
        steps.append(normalizers.Lowercase())
    return normalizers.Sequence(steps) if steps else None


def build_post_processor(config: TokenizerConfig) -> processors.PostProcessor:
    """<begin> text <end>; for two texts: <begin> first <end> second <end>."""
    begin = [config.begin] if config.add_begin else []
    end = [config.end] if config.add_end else []
    single = [*begin, "$A", *end]
    pair = [*single, "$B:1", *(f"{name}:1" for name in end)]
    ids = [(name, config.special.index(name)) for name in (config.begin, config.end)]
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)
