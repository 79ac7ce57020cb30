"""What each layer keeps -> stripes: equal groups of layers that have page tables of their own.

    layers   0w 1w 2w 3w 4w 5F 6w 7w 8w 9w 10w 11F      w: a window of 512, F: all keys
    groups   10 w and 2 F, so stripes of gcd(10, 2) = 2 layers
    stripes  (5 11)  (0 1) (2 3) (4 6) (7 8) (9 10)

A page holds R tokens of one stripe. All stripes have the same number of layers, so that any page of
the one pool can serve any of them. Differs from engines that keep a pool per kind of layer: nothing
has to be divided beforehand between windows, full attention and sources.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


class Kept(Protocol):
    """The two facts of a KVSpec that decide where its rows go."""

    @property
    def is_cross(self) -> bool: ...

    @property
    def window(self) -> int | None: ...


@dataclass(frozen=True)
class Stripe:
    """Layers whose rows lie in the same pages, in this order."""

    layers: tuple[int, ...]
    is_cross: bool = False
    window: int | None = None
    """Only the last `window` rows are read, the query's own included; None: all."""


@dataclass(frozen=True)
class Layout:
    """The stripes of a model: those of self-attention first (full, then windows), then cross."""

    stripes: tuple[Stripe, ...]

    @classmethod
    def of(cls, layers: Iterable[Kept]) -> Layout:
        """The layout of layers in the model's own order, e.g. a list of KVSpec."""
        groups: dict[tuple[bool, int], list[int]] = {}
        for index, layer in enumerate(layers):
            assert not (layer.is_cross and layer.window), f"layer {index}: a window over a source"
            groups.setdefault((layer.is_cross, layer.window or 0), []).append(index)
        size = math.gcd(*(len(group) for group in groups.values()))
        return cls(
            tuple(
                Stripe(tuple(group[start : start + size]), is_cross, window or None)
                for (is_cross, window), group in sorted(groups.items())
                for start in range(0, len(group), size)
            )
        )

    @property
    def num_layers_per_stripe(self) -> int:
        return len(self.stripes[0].layers) if self.stripes else 0

    @property
    def own(self) -> tuple[Stripe, ...]:
        """Stripes of self-attention: their pages grow with the sequence."""
        return tuple(stripe for stripe in self.stripes if not stripe.is_cross)

    @property
    def cross(self) -> tuple[Stripe, ...]:
        """Stripes of cross-attention: their pages are written once per source."""
        return tuple(stripe for stripe in self.stripes if stripe.is_cross)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The window of each self-attention stripe."""
        return tuple(stripe.window for stripe in self.own)

    @property
    def places(self) -> list[tuple[int, int]]:
        """For each layer: its stripe (counted over all stripes) and its place in it."""
        found = {
            layer: (index, place)
            for index, stripe in enumerate(self.stripes)
            for place, layer in enumerate(stripe.layers)
        }
        return [found[layer] for layer in range(len(found))]
