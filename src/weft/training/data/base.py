"""What the training loop reads: an epoch is a list of batches, a batch a few tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from weft.text.samples import IGNORE


@dataclass(frozen=True)
class Batch:
    """Rows that are computed together. `targets_BT` is IGNORE where nothing is to be predicted."""

    ids_BT: Tensor
    lengths_B: Tensor
    targets_BT: Tensor
    source_BS: Tensor | None = None
    source_lengths_B: Tensor | None = None
    documents_BT: Tensor | None = None

    def to(self, device: torch.device) -> Batch:
        moved = {name: value.to(device) for name, value in vars(self).items() if value is not None}
        return replace(self, **moved)


class Data(Protocol):
    """A corpus. Everything it gives follows from its settings, its seed and the epoch."""

    def plan(self, epoch: int) -> list[list[int]]:
        """The batches of an epoch: numbers of rows, of all processes."""

    def load(self, epoch: int, rows: list[int]) -> Batch:
        """This process's part of a batch; `nothing` where none of the rows is its own."""

    def count_targets(self, epoch: int, rows: list[int]) -> int:
        """Tokens to predict in a batch, over all processes."""


def nothing(has_source: bool) -> Batch:
    """One token and nothing to predict: what a process computes that has no rows of its own, so
    that it still takes part in every exchange."""
    one_BT = torch.zeros(1, 1, dtype=torch.long)
    length_B = torch.ones(1, dtype=torch.long)
    targets_BT = torch.full_like(one_BT, IGNORE)
    if not has_source:
        return Batch(one_BT, length_B, targets_BT)
    return Batch(one_BT, length_B, targets_BT, one_BT, length_B)
