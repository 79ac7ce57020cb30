"""Alignments as text: weights_TS of cross-attention -> one line per target token, with the source
words it attends to most.

      a       ->  \u4e00 0.81  \u4e2a 0.09
      sweet   ->  \u751c 0.93
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from weft.look.bars import MAX_LABEL_WIDTH, ViewStyle
from weft.look.heatmap import check_labels
from weft.look.terminal import display_width, pad, truncate

MIN_SHOWN = 0.05
"""Smaller weights are left out, but for the largest."""


def alignment(
    weights_TS: NDArray[np.floating],
    rows: Sequence[str],
    columns: Sequence[str],
    style: ViewStyle,
    limit: int = 4,
) -> list[str]:
    """A line per row: its largest weights and their columns, largest first, as many as fit."""
    check_labels(weights_TS, rows, columns)
    labels = [truncate(label, MAX_LABEL_WIDTH) for label in rows]
    left = max(map(display_width, labels))
    lines = []
    for label, row_S in zip(labels, weights_TS, strict=True):
        line = f"  {pad(label, left)}  ->"
        for rank, column in enumerate(np.argsort(-row_S, kind="stable")[:limit]):
            part = f"  {truncate(columns[column], MAX_LABEL_WIDTH)} {row_S[column]:.2f}"
            if rank and (row_S[column] < MIN_SHOWN or display_width(line + part) > style.width):
                break
            line += part
        lines.append(line)
    return lines


def joined_columns(
    weights_TS: NDArray[np.floating], groups: Sequence[Sequence[int]]
) -> NDArray[np.float64]:
    """The weights on groups of columns: the sum over the columns of each."""
    parts = [weights_TS[..., list(group)].sum(-1, dtype=np.float64) for group in groups]
    return np.stack(parts, axis=-1)


def joined_rows(
    weights_TS: NDArray[np.floating], groups: Sequence[Sequence[int]]
) -> NDArray[np.float64]:
    """The weights of groups of rows: the mean over the rows of each."""
    parts = [weights_TS[list(group)].mean(0, dtype=np.float64) for group in groups]
    return np.stack(parts, axis=0)
