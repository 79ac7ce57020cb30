"""KV requirements of the layers -> KV cache groups: equal numbers of layers that share page tables.

    layers   0w 1w 2w 3w 4w 5F 6w 7w 8w 9w 10w 11F      w: sliding window of 512, F: full attention
    kinds    10 w and 2 F, so groups of gcd(10, 2) = 2 layers
    groups   (5 11)  (0 1) (2 3) (4 6) (7 8) (9 10)

A page holds R tokens of one group. All groups have the same number of layers, so any page of the
one pool can serve any group. Differs from engines with a pool per kind of layer: memory is not
divided in advance between sliding windows, full attention and encoded sources.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol


class KVRequirement(Protocol):
    """The two fields of a KVSpec that decide which group a layer belongs to."""

    @property
    def is_cross(self) -> bool: ...

    @property
    def window(self) -> int | None: ...


class LayerLocation(NamedTuple):
    """Where the rows of a layer are stored."""

    group: int
    """Index over all groups."""
    position: int
    """Index of the layer in its group."""


@dataclass(frozen=True)
class KVCacheGroup:
    """Layers whose rows are stored in the same pages, in this order."""

    layers: tuple[int, ...]
    is_cross: bool = False
    window: int | None = None
    """Only the last `window` rows are read, including the query's own; None: all."""


@dataclass(frozen=True)
class KVCacheLayout:
    """The groups of a model: self-attention first (full, then windows), then cross-attention."""

    groups: tuple[KVCacheGroup, ...]

    @classmethod
    def of(cls, layers: Iterable[KVRequirement]) -> KVCacheLayout:
        """The layout of layers in model order, e.g. a list of KVSpec."""
        kinds: dict[tuple[bool, int], list[int]] = {}
        for index, layer in enumerate(layers):
            assert not (layer.is_cross and layer.window), f"layer {index}: a window over a source"
            kinds.setdefault((layer.is_cross, layer.window or 0), []).append(index)
        size = math.gcd(*(len(indices) for indices in kinds.values()))
        return cls(
            tuple(
                KVCacheGroup(tuple(indices[start : start + size]), is_cross, window or None)
                for (is_cross, window), indices in sorted(kinds.items())
                for start in range(0, len(indices), size)
            )
        )

    @property
    def num_layers_per_group(self) -> int:
        return len(self.groups[0].layers) if self.groups else 0

    @cached_property
    def self_groups(self) -> tuple[KVCacheGroup, ...]:
        """Groups of self-attention: their page tables grow with the sequence."""
        return tuple(group for group in self.groups if not group.is_cross)

    @cached_property
    def cross_groups(self) -> tuple[KVCacheGroup, ...]:
        """Groups of cross-attention: their pages are written once per source."""
        return tuple(group for group in self.groups if group.is_cross)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The sliding window of each self-attention group."""
        return tuple(group.window for group in self.self_groups)

    @property
    def layer_locations(self) -> list[LayerLocation]:
        """The location of each layer, in model order."""
        locations = {
            layer: LayerLocation(group_index, index)
            for group_index, group in enumerate(self.groups)
            for index, layer in enumerate(group.layers)
        }
        return [locations[layer] for layer in range(len(locations))]
