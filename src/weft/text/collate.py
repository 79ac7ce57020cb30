"""Rows of ids -> padded tensors. The only file of this room that needs torch.

Padding is on the right, as `ForwardBatch` wants it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.core.errors import UsageError
from weft.core.shapes import check_shapes
from weft.text.samples import Sample

Row = Sequence[int] | NDArray[np.integer[Any]]
"""Ids of one text."""


@dataclass(frozen=True)
class SampleBatch:
    """Packed samples as tensors; the fields fit ForwardBatch."""

    ids_BT: Tensor
    targets_BT: Tensor
    """The next token of the same document; IGNORE in padding."""
    documents_BT: Tensor
    lengths_B: Tensor


def collate(rows: Sequence[Row], pad_id: int = 0) -> tuple[Tensor, Tensor]:
    """ids_BT, padded to the longest row, and lengths_B."""
    lengths = [len(row) for row in rows]
    if not lengths or max(lengths) == 0:
        raise UsageError(
            f"a batch of {len(lengths)} rows holds no token: a model needs at least one. "
            "Encode with add_special=True, or leave empty texts out."
        )
    table = np.full((len(rows), max(lengths)), pad_id, dtype=np.int64)
    for index, row in enumerate(rows):
        table[index, : len(row)] = row
    ids_BT, lengths_B = torch.from_numpy(table), torch.tensor(lengths)
    check_shapes(ids_BT=ids_BT, lengths_B=lengths_B)
    return ids_BT, lengths_B


def collate_samples(samples: Sequence[Sample]) -> SampleBatch:
    """Samples of one length as one batch."""
    if not samples:
        raise UsageError("a batch of 0 samples holds no token: a model needs at least one.")
    return SampleBatch(
        ids_BT=torch.from_numpy(np.stack([sample.ids_T for sample in samples])),
        targets_BT=torch.from_numpy(np.stack([sample.targets_T for sample in samples])),
        documents_BT=torch.from_numpy(np.stack([sample.documents_T for sample in samples])),
        lengths_B=torch.tensor([sample.length for sample in samples]),
    )
