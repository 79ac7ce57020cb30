"""Learned positions: x_BTD -> x_BTD, a trained vector per position is added (Gehring 2017).

    x_t + table[offset + position_t]

Used by BERT and GPT-2. A position beyond the table is an error that names both numbers.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.core.errors import UsageError
from weft.core.shapes import check_shapes
from weft.nn.positions.base import Position
from weft.nn.positions.config import LearnedConfig, PositionShape


class Learned(Position):
    """x + table[offset + position]. `table_MD` has offset + max_len rows."""

    config_type = LearnedConfig

    def __init__(self, config: LearnedConfig, shape: PositionShape) -> None:
        super().__init__(config, shape)
        self.offset = config.offset
        self.max_len = config.max_len or shape.max_len
        self.table_MD = nn.Parameter(torch.empty(self.offset + self.max_len, shape.width))
        nn.init.normal_(self.table_MD, std=config.init_std)

    def position_rows(self, num_rows: int) -> Tensor | None:
        return self.table_MD[self.offset :] if num_rows <= self.max_len else None

    def add(self, x_BTD: Tensor, positions_BT: Tensor) -> Tensor:
        check_shapes(x_BTD=x_BTD, table_MD=self.table_MD)
        last = int(positions_BT.max())
        if last >= self.max_len:
            raise UsageError(
                f"position {last} is beyond the table of {self.max_len} learned positions "
                f"(0 to {self.max_len - 1}). Shorten the text, or train with a larger max_len."
            )
        return x_BTD + F.embedding(positions_BT + self.offset, self.table_MD)
