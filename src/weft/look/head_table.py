"""Statistics of attention heads: weights_HTS -> entropy, largest weight, distance, weight on the
first token; and a table of them.

    entropy   in bits; 0: one key gets everything, log2(n): n keys get the same
    max       the largest weight of a row
    distance  in tokens from query to key, weighted; self-attention only
    first     the weight on the first token, on which many heads of trained models rest

Each is the mean over the rows (queries), or that of some rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.look.bars import ViewStyle, table


class HeadStatistics(NamedTuple):
    """Of one head; means over its rows."""

    name: str
    entropy: float
    peak: float
    distance: float | None
    first: float


def head_statistics(
    name: str,
    weights_TS: NDArray[np.floating],
    queries: Sequence[int],
    is_self_attention: bool,
) -> HeadStatistics:
    """The statistics of one head. `queries`: the positions of the rows."""
    weights_TS = weights_TS.astype(np.float64)
    logs = np.log2(weights_TS, out=np.zeros_like(weights_TS), where=weights_TS > 0)
    entropy = float(-(weights_TS * logs).sum(-1).mean())
    distances = np.abs(np.asarray(queries)[:, None] - np.arange(weights_TS.shape[1]))
    distance = float((weights_TS * distances).sum(-1).mean()) if is_self_attention else None
    peak, first = float(weights_TS.max(-1).mean()), float(weights_TS[:, 0].mean())
    return HeadStatistics(name, entropy + 0.0, peak, distance, first)


def head_table(heads: Sequence[HeadStatistics], style: ViewStyle) -> list[str]:
    """One line per head, in the order given."""
    rows = [
        (
            one.name,
            f"{one.entropy:.2f}",
            f"{one.peak:.2f}",
            "-" if one.distance is None else f"{one.distance:.1f}",
            f"{one.first:.2f}",
        )
        for one in heads
    ]
    return table(("head", "entropy", "max", "distance", "first"), rows)
