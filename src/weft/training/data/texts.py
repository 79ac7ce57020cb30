"""Plain text -> packed samples for a decoder (lm) or an encoder (mlm).

    lm    ids  a b c d    targets  b c d e        the next token
    mlm   ids  a _ c d    targets  - b - -        the tokens that were hidden (Devlin 2019)

A document is a line, kept from the others in its sample, or a whole file as one stream. In a stream
each epoch cuts the samples at another place, so that no token always stands at a border.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from weft.text.collate import collate_samples
from weft.text.samples import IGNORE, PackedSamples, Sample
from weft.text.tokenizer import Tokenizer
from weft.training.data.base import Batch, nothing
from weft.training.data.tokens import TokenFile
from weft.training.processes import Processes

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TextSettings:
    """What decides how text becomes batches."""

    sample_len: int
    batch_tokens: int
    objective: Literal["lm", "mlm"] = "lm"
    documents: Literal["line", "file"] = "line"
    mask_share: float = 0.15
    seed: int = 0


class TextData:
    """A corpus of documents, encoded once."""

    def __init__(
        self,
        tokens: TokenFile,
        tokenizer: Tokenizer,
        settings: TextSettings,
        processes: Processes | None = None,
    ) -> None:
        self.tokens, self.tokenizer, self.settings = tokens, tokenizer, settings
        self.processes = processes or Processes()
        self.num_tokens = len(tokens.flat)
        log.info("documents=%d tokens=%d", len(tokens.starts) - 1, self.num_tokens)
        self.current: tuple[int, PackedSamples] = (0, self.cut(0))

    def cut(self, epoch: int) -> PackedSamples:
        """The samples of an epoch."""
        settings = self.settings
        is_stream, skip = settings.documents == "file", 0
        if is_stream and epoch:
            skip = int(np.random.default_rng([settings.seed, epoch]).integers(settings.sample_len))
        return PackedSamples(
            self.tokens.flat, self.tokens.starts, settings.sample_len, not is_stream, skip
        )

    def at(self, epoch: int) -> PackedSamples:
        if self.settings.documents == "line":
            return self.current[1]
        if self.current[0] != epoch:
            self.current = (epoch, self.cut(epoch))
        return self.current[1]

    def plan(self, epoch: int) -> list[list[int]]:
        settings = self.settings
        size = max(1, settings.batch_tokens // settings.sample_len)
        samples = self.at(epoch)
        order = np.random.default_rng([settings.seed, epoch, 1]).permutation(len(samples)).tolist()
        return [order[i : i + size] for i in range(0, len(order), size)]

    def count_targets(self, epoch: int, rows: list[int]) -> int:
        samples = self.at(epoch)
        if self.settings.objective == "lm":
            return sum(samples.length_of(row) for row in rows)
        return sum(int(self.chosen(epoch, row, samples.length_of(row)).sum()) for row in rows)

    def load(self, epoch: int, rows: list[int]) -> Batch:
        own = rows[self.processes.rank :: self.processes.world]
        if not own:
            return nothing(has_source=False)
        is_lm = self.settings.objective == "lm"
        batch = collate_samples(
            [self.at(epoch)[r] if is_lm else self.masked(epoch, r) for r in own]
        )
        is_stream = self.settings.documents == "file"
        return Batch(
            ids_BT=batch.ids_BT,
            lengths_B=batch.lengths_B,
            targets_BT=batch.targets_BT,
            documents_BT=None if is_stream else batch.documents_BT,
        )

    def chosen(self, epoch: int, row: int, length: int) -> NDArray[np.bool_]:
        """Which tokens of a sample are to be guessed: drawn without reading it."""
        rng = np.random.default_rng([self.settings.seed, epoch, row, 2])
        chosen = rng.random(length) < self.settings.mask_share
        if not chosen.any():
            chosen[rng.integers(length)] = True
        return chosen

    def masked(self, epoch: int, row: int) -> Sample:
        """The sample with some tokens hidden: 80 % of the chosen masked, 10 % another."""
        sample, tokenizer = self.at(epoch)[row], self.tokenizer
        length = sample.length
        chosen = self.chosen(epoch, row, length)
        rng = np.random.default_rng([self.settings.seed, epoch, row, 3])
        ids = sample.ids_T.copy()
        targets = np.full_like(ids, IGNORE)
        targets[:length][chosen] = ids[:length][chosen]
        way = rng.random(length)
        ids[:length][chosen & (way < 0.8)] = tokenizer.id_of("mask")
        other = chosen & (way >= 0.8) & (way < 0.9)
        ids[:length][other] = rng.integers(tokenizer.vocab_size, size=int(other.sum()))
        return replace(sample, ids_T=ids, targets_T=targets)
