"""`Tokenizer`: text <-> ids. Wraps the `tokenizers` library; on disk it is a standard
tokenizer.json.

Differs from the bare library: text that spells a special token stays text unless asked for (nobody
can smuggle an end into a prompt), cutting is counted and said, dropout is seeded, and every
special token is known by its role.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from weft.core.errors import UsageError
from weft.text.bpe_dropout import BpeDropout
from weft.text.corpus import Source, read_many
from weft.text.fit import fit, refuse_unencodable
from weft.text.report import TextReport
from weft.text.settings import TokenizerConfig
from weft.text.spans import Tokens, view_tokens
from weft.text.specials import Role, Specials, find_specials
from weft.text.storage import FILE, TARGET, load_files, save_files
from weft.text.token_bytes import byte_reader
from weft.text.train import train_backend


class Tokenizer:
    """Text <-> ids. Never changes after construction, but for the counts in `report`."""

    def __init__(
        self,
        backend: Backend,
        specials: Specials | None = None,
        config: TokenizerConfig | None = None,
        target: Tokenizer | None = None,
        max_len: int | None = None,
    ) -> None:
        self.backend = backend
        self.specials = specials or find_specials(backend, {})
        self.config = config
        """The settings it was trained with; None where others trained it."""
        self.target: Tokenizer = target or self
        """The tokenizer of what a model writes: another one only where the two sides of a
        translation model are cut differently."""
        self.max_len = max_len or (config.max_len if config else None)
        """Longer texts are cut there, unless another length is asked for."""
        self.report = TextReport()
        """Counts of everything encoded without a report of its own."""
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = True

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[Any, ...]]:
        """Copies for other processes count for themselves."""
        target = None if self.target is self else self.target
        return Tokenizer, (self.backend, self.specials, self.config, target, self.max_len)

    @classmethod
    def train(cls, lines: Iterable[str], config: TokenizerConfig | None = None) -> Tokenizer:
        """A new tokenizer from lines, which are read once and may be endless in number."""
        config = config or TokenizerConfig()
        names = (config.pad, config.begin, config.end, config.unknown, config.mask)
        return cls(train_backend(lines, config), Specials(*names), config)

    @classmethod
    def train_files(
        cls, files: Iterable[Source], config: TokenizerConfig | None = None
    ) -> Tokenizer:
        """A new tokenizer from text files, plain or gzip, one document a line."""
        return cls.train(read_many(files), config)

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """From a folder that holds a tokenizer.json, or from such a file itself."""
        target = Path(path) / TARGET
        return cls(*load_files(Path(path)), cls.load(target) if (target / FILE).is_file() else None)

    def limited(self, max_len: int | None) -> Tokenizer:
        """The same tokenizer, which cuts texts at another length; None: as before."""
        target = None if self.target is self else self.target
        parts = (self.backend, self.specials, self.config, target)
        return self if max_len is None else Tokenizer(*parts, max_len)

    def save(self, path: str | Path) -> Path:
        """Write a folder (tokenizer.json, tokenizer_config.json) or, for a name in .json, that
        file; returns the file with the tokenizer. A target side has a folder inside."""
        if self.target is not self:
            if Path(path).suffix == ".json":
                raise UsageError(
                    f"{path} is one file, but this tokenizer has two sides. Name a folder."
                )
            self.target.save(Path(path) / TARGET)
        return save_files(Path(path), self.backend, self.specials, self.config)

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
        """Ids of each text, with begin and end if `add_special`, cut to `max_len` ids in all.

        `parse_special`: "<end>" in the text is the special token, as chat templates need it.
        `dropout`: leave out merges at random, by `rng` (see bpe_dropout).
        """
        bodies = self.bodies(texts, parse_special, dropout, rng)
        frame = self.frame if add_special else ([], [])
        limit = self.max_len if max_len is None else max_len
        return fit(bodies, frame, limit, self.unknown_id, report or self.report)

    def bodies(
        self,
        texts: Sequence[str],
        parse_special: bool,
        dropout: float,
        rng: random.Random | None,
    ) -> list[list[int]]:
        """Ids of each text, uncut, without begin and end."""
        refuse_unencodable(texts)
        if dropout:
            if rng is None or not 0 < dropout <= 1:
                raise UsageError(
                    f"dropout is {dropout} with rng={rng}: it must be between 0 and 1 and needs "
                    "a random.Random. Give rng=random.Random(seed)."
                )
            return [self.bpe_dropout.encode(text, dropout, rng) for text in texts]
        backend = self.parsing_backend if parse_special else self.backend
        return [e.ids for e in backend.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of ids. Exact for what `encode` made, unless it was normalised, cut or
        unknown. Ids are those of the target side, where there is one."""
        target = self.target
        return str(target.backend.decode(target.known(ids), skip_special_tokens=skip_special))

    def decode_batch(self, batch: Iterable[Sequence[int]], skip_special: bool = True) -> list[str]:
        return [self.decode(ids, skip_special) for ids in batch]

    def tokens(self, text: str, add_special: bool = True) -> Tokens:
        """Ids, pieces and the span of characters each one covers; never cut."""
        refuse_unencodable([text])
        return view_tokens(self.backend.encode(text, add_special_tokens=add_special), text)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The token of each id as the vocabulary writes it: ' the', '<0xE8>', '<end>'."""
        return [self.backend.id_to_token(index) or "" for index in self.known(ids)]

    def token_bytes(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes of text that each id stands for; a special token gives its name."""
        return [self.read_bytes(piece) for piece in self.pieces(ids)]

    def known(self, ids: Sequence[int]) -> list[int]:
        """The ids as plain numbers; a UsageError for one that is outside the vocabulary."""
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
        """One more than the largest id, which is what an embedding must have."""
        return max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @cached_property
    def frame(self) -> tuple[list[int], list[int]]:
        """The ids that `add_special` puts before and after a text."""
        framed = self.backend.encode("a")
        body = self.backend.encode("a", add_special_tokens=False).ids
        for start in range(len(framed.ids) - len(body) + 1):
            if framed.ids[start : start + len(body)] == body and body:
                return framed.ids[:start], framed.ids[start + len(body) :]
        return framed.ids, []

    @cached_property
    def parsing_backend(self) -> Backend:
        """The same tokenizer, which reads special tokens out of text."""
        return Backend.from_str(self.backend.to_str())

    @cached_property
    def bpe_dropout(self) -> BpeDropout:
        return BpeDropout(self.backend)

    @cached_property
    def read_bytes(self) -> Callable[[str], bytes]:
        return byte_reader(self.backend)

    def id_of(self, role: Role) -> int:
        """The id of a role that the caller cannot do without."""
        found = self.find_id(role)
        if found is None:
            raise UsageError(
                f"this tokenizer has no {role} token, which is needed here. Name it in its "
                "tokenizer_config.json, or use another tokenizer."
            )
        return found

    def find_id(self, role: Role) -> int | None:
        name: str | None = getattr(self.specials, role)
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
