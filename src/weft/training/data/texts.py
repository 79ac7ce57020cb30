"""Plain text -> packed samples for a decoder (lm) or an encoder (mlm).

    lm    ids  a b c d    targets  b c d e        the next token
    mlm   ids  a _ c d    targets  - b - -        the masked tokens (Devlin 2019)

A document is a line, which does not attend to the other documents of its sample, or a whole file as
one stream. A stream is cut into samples at a different offset each epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from weft.text.packing import IGNORE, PackedSample, PackedSamples
from weft.text.tokenizer import Tokenizer
from weft.training.data.tokens import TokenFile
from weft.training.distributed import DistributedContext
from weft.training.objective import Batch, empty_batch

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TextDataConfig:
    """How text is cut into samples and batches."""

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
        config: TextDataConfig,
        distributed: DistributedContext | None = None,
    ) -> None:
        self.tokens, self.tokenizer, self.config = tokens, tokenizer, config
        self.distributed = distributed or DistributedContext()
        self.num_tokens = len(tokens.ids)
        log.info("documents=%d tokens=%d", len(tokens.starts) - 1, self.num_tokens)
        self.current: tuple[int, PackedSamples] = (0, self.pack(0))

    def pack(self, epoch: int) -> PackedSamples:
        """Cut the token ids into the samples of an epoch."""
        config = self.config
        is_stream, skip = config.documents == "file", 0
        if is_stream and epoch:
            skip = int(np.random.default_rng([config.seed, epoch]).integers(config.sample_len))
        return PackedSamples(
            self.tokens.ids, self.tokens.starts, config.sample_len, not is_stream, skip
        )

    def samples(self, epoch: int) -> PackedSamples:
        """The samples of an epoch; lines are packed once, a stream anew for each epoch."""
        if self.config.documents == "line":
            return self.current[1]
        if self.current[0] != epoch:
            self.current = (epoch, self.pack(epoch))
        return self.current[1]

    def plan(self, epoch: int) -> list[list[int]]:
        config = self.config
        size = max(1, config.batch_tokens // config.sample_len)
        samples = self.samples(epoch)
        order = np.random.default_rng([config.seed, epoch, 1]).permutation(len(samples)).tolist()
        return [order[i : i + size] for i in range(0, len(order), size)]

    def count_targets(self, epoch: int, rows: list[int]) -> int:
        samples = self.samples(epoch)
        if self.config.objective == "lm":
            return sum(samples.length_of(row) for row in rows)
        return sum(int(self.is_masked(epoch, row, samples.length_of(row)).sum()) for row in rows)

    def load(self, epoch: int, rows: list[int]) -> Batch:
        local_rows = rows[self.distributed.rank :: self.distributed.world_size]
        if not local_rows:
            return empty_batch(has_source=False)
        is_lm = self.config.objective == "lm"
        samples = [self.samples(epoch)[r] if is_lm else self.masked(epoch, r) for r in local_rows]
        return collate_samples(samples, is_stream=self.config.documents == "file")

    def is_masked(self, epoch: int, row: int, length: int) -> NDArray[np.bool_]:
        """Which tokens of a sample are predicted (at least one), drawn without reading it."""
        rng = np.random.default_rng([self.config.seed, epoch, row, 2])
        is_masked = rng.random(length) < self.config.mask_share
        if not is_masked.any():
            is_masked[rng.integers(length)] = True
        return is_masked

    def masked(self, epoch: int, row: int) -> PackedSample:
        """A sample for mlm: of the predicted tokens 80 % are masked, 10 % random, 10 % kept."""
        sample, tokenizer = self.samples(epoch)[row], self.tokenizer
        length = sample.length
        is_masked = self.is_masked(epoch, row, length)
        rng = np.random.default_rng([self.config.seed, epoch, row, 3])
        ids = sample.ids_T.copy()
        targets = np.full_like(ids, IGNORE)
        targets[:length][is_masked] = ids[:length][is_masked]
        draws = rng.random(length)
        ids[:length][is_masked & (draws < 0.8)] = tokenizer.id_of("mask")
        is_random = is_masked & (draws >= 0.8) & (draws < 0.9)
        ids[:length][is_random] = rng.integers(tokenizer.vocab_size, size=int(is_random.sum()))
        return replace(sample, ids_T=ids, targets_T=targets)


def collate_samples(samples: Sequence[PackedSample], is_stream: bool = False) -> Batch:
    """Samples of one length as one batch; the documents of a stream attend to each other."""
    documents_BT = torch.from_numpy(np.stack([sample.documents_T for sample in samples]))
    return Batch(
        ids_BT=torch.from_numpy(np.stack([sample.ids_T for sample in samples])),
        lengths_B=torch.tensor([sample.length for sample in samples]),
        targets_BT=torch.from_numpy(np.stack([sample.targets_T for sample in samples])),
        documents_BT=None if is_stream else documents_BT,
    )
