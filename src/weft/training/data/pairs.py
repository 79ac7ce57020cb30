"""Pairs of lines -> batches for an encoder-decoder.

    source      <b> s s s <e>           what the encoder reads
    ids         <b> t t                 what the decoder reads
    targets     t   t <e>               what it is to say

A pair with an empty side is skipped and an over-long line is cut; both are counted and said.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.core.errors import DataError
from weft.text.batches import batches
from weft.text.collate import collate
from weft.text.report import TextReport
from weft.text.samples import IGNORE
from weft.text.tokenizer import Tokenizer
from weft.training.data.base import Batch, nothing
from weft.training.data.ragged import Ragged
from weft.training.processes import Processes

log = logging.getLogger(__name__)

Pair = tuple[str, str]


@dataclass(frozen=True)
class PairSettings:
    """What decides how pairs become batches."""

    max_len: int
    batch_tokens: int
    seed: int = 0
    bpe_dropout: float = 0.0
    skip_limit: float = 0.1


class Encoded:
    """The ids of this process's pairs, and the lengths of all."""

    def __init__(
        self, sources: list[list[int]], targets: list[list[int]], total: int, processes: Processes
    ) -> None:
        self.sources, self.targets = Ragged(sources), Ragged(targets)
        own = np.stack((self.sources.lengths, self.targets.lengths - 1), axis=1)
        self.lengths = processes.merge_rows(own, total)
        """[rows, 2]: source, and target without the one token that is not both read and said."""


class PairData:
    """A corpus of pairs. With BPE-dropout each epoch is encoded anew, by a seed of its own.

    A process keeps and encodes only the pairs that it owns: row % world == rank.
    """

    def __init__(
        self,
        pairs: Iterable[Pair],
        tokenizer: Tokenizer,
        settings: PairSettings,
        processes: Processes | None = None,
    ) -> None:
        self.tokenizer, self.settings = tokenizer, settings
        self.processes = processes or Processes()
        self.own: list[Pair] = []
        self.num_pairs = total = 0
        for pair in pairs:
            total += 1
            if pair[0].strip() and pair[1].strip():
                if self.num_pairs % self.processes.world == self.processes.rank:
                    self.own.append(pair)
                self.num_pairs += 1
        self.report = TextReport()
        if not self.num_pairs:
            raise DataError(f"all {total} pairs have an empty side: there is nothing to learn.")
        self.once = self.encode(None, self.report)
        self.current: tuple[int, Encoded] = (-1, self.once)
        self.say(total, skipped=total - self.num_pairs)

    def say(self, total: int, skipped: int) -> None:
        """Tell what was skipped and cut; refuse when it is too much."""
        settings = self.settings
        cut = int(self.processes.sum(self.report.cut_lines))
        log.info("pairs=%d skipped=%d cut=%d max_len=%d", total, skipped, cut, settings.max_len)
        if skipped:
            log.warning("%d of %d pairs have an empty side and were skipped", skipped, total)
        share = (skipped + cut) / total
        if share > settings.skip_limit:
            raise DataError(
                f"{skipped} of {total} pairs have an empty side and {cut} lines are longer than "
                f"{settings.max_len} tokens: that is {share:.0%}, and train.skip_limit allows "
                f"{settings.skip_limit:.0%}. Clean the files, or raise model.max_len or the limit."
            )

    def encode(self, epoch: int | None, report: TextReport) -> Encoded:
        """Ids of the own pairs; `epoch` seeds the dropout of merges, None leaves none out."""
        sides = [self.encode_side(side, epoch, report) for side in (0, 1)]
        return Encoded(sides[0], sides[1], self.num_pairs, self.processes)

    def encode_side(self, side: int, epoch: int | None, report: TextReport) -> list[list[int]]:
        settings, texts = self.settings, [pair[side] for pair in self.own]
        if epoch is None or not settings.bpe_dropout:
            return self.tokenizer.encode_batch(texts, max_len=settings.max_len, report=report)
        ids = []
        for number, text in enumerate(texts):
            # a seed for each pair: what it draws does not depend on which process encodes it
            row = number * self.processes.world + self.processes.rank
            rng = random.Random(f"{settings.seed} {epoch} {row} {side}")
            ids += self.tokenizer.encode_batch(
                [text],
                max_len=settings.max_len,
                report=report,
                dropout=settings.bpe_dropout,
                rng=rng,
            )
        return ids

    def at(self, epoch: int) -> Encoded:
        """The ids of an epoch."""
        if not self.settings.bpe_dropout:
            return self.once
        if self.current[0] != epoch:
            self.current = (epoch, self.encode(epoch, TextReport()))
        return self.current[1]

    def plan(self, epoch: int) -> list[list[int]]:
        settings = self.settings
        return batches(self.at(epoch).lengths, settings.batch_tokens, settings.seed, epoch)

    def count_targets(self, epoch: int, rows: list[int]) -> int:
        return int(self.at(epoch).lengths[rows, 1].sum())

    def load(self, epoch: int, rows: list[int]) -> Batch:
        encoded, processes = self.at(epoch), self.processes
        own = [row // processes.world for row in rows if row % processes.world == processes.rank]
        if not own:
            return nothing(has_source=True)
        source_BS, source_lengths_B = collate([encoded.sources[row] for row in own])
        targets = [encoded.targets[row] for row in own]
        ids_BT, lengths_B = collate([target[:-1] for target in targets])
        return Batch(
            ids_BT=ids_BT,
            lengths_B=lengths_B,
            targets_BT=shifted(targets),
            source_BS=source_BS,
            source_lengths_B=source_lengths_B,
        )


def shifted(targets: Sequence[NDArray[np.int32]]) -> Tensor:
    """Each row without its first token, padded with IGNORE."""
    longest = max(len(target) for target in targets) - 1
    table = np.full((len(targets), longest), IGNORE, dtype=np.int64)
    for row, target in enumerate(targets):
        table[row, : len(target) - 1] = target[1:]
    return torch.from_numpy(table)
