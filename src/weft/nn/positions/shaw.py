"""Relative positions with learned distance vectors: q_BTHC -> bias_BHTS (Shaw 2018, equation 5).

    bias(q, k) = q . a[clip(k - q, -max_distance, max_distance)] / sqrt(C)

so that q . (k + a) / sqrt(C) is the scaled dot product. Each layer has its own vectors, shared by
its heads. Differs from the paper: the key side only; its table 3 finds no gain from vectors on the
value side. A causal stack has no rows for keys to the right.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weft.core.shapes import check_shapes
from weft.nn.positions.base import Bias, Position
from weft.nn.positions.config import PositionShape, ShawConfig


class Shaw(Position):
    """q . table[clip(k - q)] / sqrt(C). Row m of `table_LMC` is distance m - max_distance."""

    config_type = ShawConfig

    def __init__(self, config: ShawConfig, shape: PositionShape) -> None:
        super().__init__(config, shape)
        self.left = config.max_distance
        self.right = 0 if shape.is_causal else config.max_distance
        rows = self.left + 1 + self.right
        self.table_LMC = nn.Parameter(torch.empty(shape.num_layers, rows, shape.head_size))
        nn.init.normal_(self.table_LMC, std=config.init_std)

    def bias(self, layer: int, q_BTHC: Tensor) -> Bias:
        """Each query is multiplied by each of the M distance vectors once; tiles only gather."""
        check_shapes(q_BTHC=q_BTHC, table_LMC=self.table_LMC)
        return ShawBias(self.distance_scores(layer, q_BTHC), self.left, self.right)

    def distance_scores(self, layer: int, q_BTHC: Tensor) -> Tensor:
        """scores_BTHM of each query with each distance vector of a layer."""
        return scaled_scores(q_BTHC, self.table_LMC[layer])


def scaled_scores(q_BTHC: Tensor, table_MC: Tensor) -> Tensor:
    """q . a / sqrt(C)."""
    return q_BTHC @ (table_MC * q_BTHC.shape[-1] ** -0.5).T


@dataclass(frozen=True)
class ShawBias(Bias):
    """Scores of every query with every distance vector, from which tiles are gathered."""

    scores_BTHM: Tensor
    left: int
    right: int

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.scores_BTHM,)

    def query_table(self) -> Tensor:
        """Rows are distances k - q, a table is by q - k. With M = left + 1 + right and right 0 or
        left, the entry of distance 0 is where the contract has it."""
        return self.scores_BTHM[0].flip(-1)

    def at(self, t_T: Tensor, q_BT: Tensor, k_S: Tensor, *tensors: Tensor) -> Tensor:
        (scores_BTHM,) = tensors or self.tensors()
        scores_BHTM = scores_BTHM.index_select(1, t_T).transpose(1, 2)
        row_BTS = (k_S - q_BT[:, :, None]).clamp(-self.left, self.right) + self.left
        row_BHTS = row_BTS[:, None].expand(*scores_BHTM.shape[:3], -1)
        return scores_BHTM.gather(-1, row_BHTS)
