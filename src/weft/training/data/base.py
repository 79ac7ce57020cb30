"""Contracts of data and training loop: an epoch is a list of batches, a batch a few tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from weft.text.packing import IGNORE


@dataclass(frozen=True)
class Batch:
    """Rows that are computed together. `targets_BT` is IGNORE where nothing is predicted."""

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
    """A corpus. Its batches are a pure function of its config, its seed and the epoch."""

    def plan(self, epoch: int) -> list[list[int]]:
        """The batches of an epoch as row numbers, over all processes."""

    def load(self, epoch: int, rows: list[int]) -> Batch:
        """The rows of a batch that belong to this process; `empty_batch` if none does."""

    def count_targets(self, epoch: int, rows: list[int]) -> int:
        """Number of target tokens of a batch, over all processes."""


def empty_batch(has_source: bool) -> Batch:
    """One token without a target: a process without rows still takes part in every collective."""
    one_BT = torch.zeros(1, 1, dtype=torch.long)
    length_B = torch.ones(1, dtype=torch.long)
    targets_BT = torch.full_like(one_BT, IGNORE)
    if not has_source:
        return Batch(one_BT, length_B, targets_BT)
    return Batch(one_BT, length_B, targets_BT, one_BT, length_B)
