"""Pairs of lines -> batches for an encoder-decoder.

    source      <b> s s s <e>           input of the encoder
    ids         <b> t t                 input of the decoder
    targets     t   t <e>               its targets

Pairs with an empty side are skipped and long lines are truncated; both are counted and logged. The
ids are stored in flat arrays, 4 bytes per token instead of about 40 in Python lists.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.core.errors import DataError
from weft.text.batching import batches, collate
from weft.text.encoding import TextReport
from weft.text.packing import IGNORE
from weft.text.tokenizer import Tokenizer
from weft.training.data.files import Pair
from weft.training.distributed import DistributedContext
from weft.training.objective import Batch, empty_batch

log = logging.getLogger(__name__)


ENCODE_LINES = 5000
"""Lines per call of the tokenizer."""


@dataclass(frozen=True)
class PairDataConfig:
    """How pairs are encoded and batched."""

    max_len: int
    batch_tokens: int
    seed: int = 0
    bpe_dropout: float = 0.0
    skip_limit: float = 0.1


class RaggedArray:
    """Rows of token ids of different lengths in one flat array."""

    def __init__(self, rows: Iterable[Sequence[int]]) -> None:
        parts = [np.asarray(row, dtype=np.int32) for row in rows]
        self.lengths: NDArray[np.int64] = np.array([len(part) for part in parts], dtype=np.int64)
        self.flat = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)
        self.starts = np.concatenate(([0], self.lengths.cumsum()))

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, row: int) -> NDArray[np.int32]:
        return self.flat[self.starts[row] : self.starts[row + 1]]


class EncodedPairs:
    """The token ids of this process's pairs, and the lengths of all pairs."""

    def __init__(
        self,
        sources: list[list[int]],
        targets: list[list[int]],
        num_pairs: int,
        distributed: DistributedContext,
    ) -> None:
        self.sources, self.targets = RaggedArray(sources), RaggedArray(targets)
        local_lengths = np.stack((self.sources.lengths, self.targets.lengths - 1), axis=1)
        self.lengths = distributed.gather_rows(local_lengths, num_pairs)
        """[pairs, 2]: source tokens, and target tokens (one less than ids: input and target are
        shifted by one)."""


class PairData:
    """A corpus of pairs. With BPE-dropout every epoch is encoded anew, with its own seed.

    A process stores and encodes only its own pairs: row % world_size == rank.
    """

    def __init__(
        self,
        pairs: Iterable[Pair],
        tokenizer: Tokenizer,
        config: PairDataConfig,
        distributed: DistributedContext | None = None,
        stage: Callable[[str, int, int | None], None] = lambda name, done, total: None,
    ) -> None:
        """`stage` receives the progress of the first encoding (training/observer.py)."""
        self.tokenizer, self.config, self.stage = tokenizer, config, stage
        self.distributed = distributed or DistributedContext()
        self.local_pairs: list[Pair] = []
        self.num_pairs = num_lines = 0
        for pair in pairs:
            num_lines += 1
            if pair[0].strip() and pair[1].strip():
                if self.num_pairs % self.distributed.world_size == self.distributed.rank:
                    self.local_pairs.append(pair)
                self.num_pairs += 1
        self.report = TextReport()
        if not self.num_pairs:
            raise DataError(f"all {num_lines} pairs have an empty side: there is nothing to learn.")
        self.without_dropout = self.encode(None, self.report)
        self.current: tuple[int, EncodedPairs] = (-1, self.without_dropout)
        self.check_skipped(num_lines)

    def check_skipped(self, num_lines: int) -> None:
        """Log how many pairs were skipped and lines truncated; an error above skip_limit."""
        config, num_skipped = self.config, num_lines - self.num_pairs
        num_cut = int(self.distributed.sum(self.report.cut_lines))
        log.info(
            "pairs=%d skipped=%d cut=%d max_len=%d", num_lines, num_skipped, num_cut, config.max_len
        )
        if num_skipped:
            log.warning(
                "%d of %d pairs have an empty side and were skipped", num_skipped, num_lines
            )
        share = (num_skipped + num_cut) / num_lines
        if share > config.skip_limit:
            raise DataError(
                f"{num_skipped} of {num_lines} pairs have an empty side and {num_cut} lines are "
                f"longer than {config.max_len} tokens: that is {share:.0%}, and train.skip_limit "
                f"allows {config.skip_limit:.0%}. Clean the files, or raise model.max_len or the "
                "limit."
            )

    def encode(self, epoch: int | None, report: TextReport) -> EncodedPairs:
        """Encode the local pairs; `epoch` seeds BPE-dropout, None: without dropout."""
        sources, targets = (self.encode_side(side, epoch, report) for side in (0, 1))
        return EncodedPairs(sources, targets, self.num_pairs, self.distributed)

    def encode_side(self, side: int, epoch: int | None, report: TextReport) -> list[list[int]]:
        config, texts = self.config, [pair[side] for pair in self.local_pairs]
        ids: list[list[int]] = []
        if epoch is None or not config.bpe_dropout:
            total = 2 * len(texts)
            for begin in range(0, len(texts), ENCODE_LINES):
                self.stage("encoding the pairs", side * len(texts) + begin, total)
                batch = texts[begin : begin + ENCODE_LINES]
                ids += self.tokenizer.encode_batch(batch, max_len=config.max_len, report=report)
            return ids
        for i, text in enumerate(texts):
            # one seed per pair: the draws do not depend on which process encodes it
            row = i * self.distributed.world_size + self.distributed.rank
            rng = random.Random(f"{config.seed} {epoch} {row} {side}")
            ids += self.tokenizer.encode_batch(
                [text], max_len=config.max_len, report=report, dropout=config.bpe_dropout, rng=rng
            )
        return ids

    def encoded(self, epoch: int) -> EncodedPairs:
        """The token ids of an epoch."""
        if not self.config.bpe_dropout:
            return self.without_dropout
        if self.current[0] != epoch:
            self.current = (epoch, self.encode(epoch, TextReport()))
        return self.current[1]

    def plan(self, epoch: int) -> list[list[int]]:
        config = self.config
        return batches(self.encoded(epoch).lengths, config.batch_tokens, config.seed, epoch)

    def count_targets(self, epoch: int, rows: list[int]) -> int:
        return int(self.encoded(epoch).lengths[rows, 1].sum())

    def load(self, epoch: int, rows: list[int]) -> Batch:
        encoded = self.encoded(epoch)
        rank, world_size = self.distributed.rank, self.distributed.world_size
        local_rows = [row // world_size for row in rows if row % world_size == rank]
        if not local_rows:
            return empty_batch(has_source=True)
        source_BS, source_lengths_B = collate([encoded.sources[row] for row in local_rows])
        targets = [encoded.targets[row] for row in local_rows]
        ids_BT, lengths_B = collate([target[:-1] for target in targets])
        return Batch(
            ids_BT=ids_BT,
            lengths_B=lengths_B,
            targets_BT=shift_targets(targets),
            source_BS=source_BS,
            source_lengths_B=source_lengths_B,
        )


def shift_targets(targets: Sequence[NDArray[np.int32]]) -> Tensor:
    """Each row without its first token, padded with IGNORE."""
    max_len = max(len(target) for target in targets) - 1
    padded = np.full((len(targets), max_len), IGNORE, dtype=np.int64)
    for row, target in enumerate(targets):
        padded[row, : len(target) - 1] = target[1:]
    return torch.from_numpy(padded)
