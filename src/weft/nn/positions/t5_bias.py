"""T5's relative position bias: -> bias_BHTS, one learned value per head and bucket (Raffel 2020).

    bias(q, k) = table[bucket(k - q), head]

Small distances have a bucket each; larger ones share buckets whose width grows logarithmically; all
distances from max_distance on share one. A bidirectional stack uses half of the buckets for each
side. One table serves all layers of the stack. Differs from T5's code: the bucket of a distance is
computed once.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.core.shapes import check_shapes
from weft.nn.positions.base import Bias, Position
from weft.nn.positions.config import PositionShape, T5BiasConfig


class T5Bias(Position):
    """table[bucket(k - q), head]. `table_MH` has one row per bucket."""

    config_type = T5BiasConfig

    def __init__(self, config: T5BiasConfig, shape: PositionShape) -> None:
        super().__init__(config, shape)
        self.rule = BucketRule(config.num_buckets, config.max_distance, not shape.is_causal)
        self.table_MH = nn.Parameter(torch.empty(config.num_buckets, shape.num_heads))
        nn.init.normal_(self.table_MH, std=config.init_std)

    def bias(self, layer: int, q_BTHC: Tensor) -> Bias:
        check_shapes(q_BTHC=q_BTHC, table_MH=self.table_MH)
        return BucketBias(self.table_MH, self.rule)


@dataclass(frozen=True)
class BucketRule:
    """Maps a distance to its bucket."""

    num_buckets: int
    max_distance: int
    is_bidirectional: bool

    def bucket(self, distance: Tensor) -> Tensor:
        """T5's rule for distances k - q, any shape."""
        num_buckets, base = self.num_buckets, torch.zeros_like(distance)
        if self.is_bidirectional:
            num_buckets //= 2
            base = torch.where(distance > 0, num_buckets, 0)
            distance = distance.abs()
        else:
            distance = -distance.clamp(max=0)
        exact = num_buckets // 2
        # the minimum of 1 avoids log(0); distances below `exact` do not use this branch
        ratio = torch.log(distance.clamp(min=1).float() / exact)
        ratio = ratio / math.log(self.max_distance / exact)
        wide = exact + (ratio * (num_buckets - exact)).long()
        return base + torch.where(distance < exact, distance, wide.clamp(max=num_buckets - 1))


@functools.lru_cache(maxsize=64)
def buckets_by_distance(rule: BucketRule, device: torch.device) -> Tensor:
    """Bucket of each distance from -max_distance to max_distance; the two ends also stand for all
    larger distances."""
    with torch.inference_mode(False):
        limit = rule.max_distance
        return rule.bucket(torch.arange(-limit, limit + 1, device="cpu")).to(device)


@dataclass(frozen=True)
class BucketBias(Bias):
    """The table and the rule that selects its row."""

    table_MH: Tensor
    rule: BucketRule
    by_distance = True

    @property
    def max_distance(self) -> int:  # type: ignore[override]
        return self.rule.max_distance

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.table_MH,)

    def at(self, t_T: Tensor, q_BT: Tensor, k_S: Tensor, *tensors: Tensor) -> Tensor:
        (table_MH,) = tensors or self.tensors()
        limit = self.rule.max_distance
        distance_BTS = (k_S - q_BT[:, :, None]).clamp(-limit, limit)
        bucket_BTS = buckets_by_distance(self.rule, k_S.device)[distance_BTS + limit]
        return F.embedding(bucket_BTS, table_MH).permute(0, 3, 1, 2)
