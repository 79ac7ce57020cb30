"""Heat map: weights_TS and labels -> lines of shaded blocks, as wide as a terminal.

       Sa ., 5  . August 1  9  0  5
    8             ######                 August 0.93

A column is as wide as its label, at least two characters; columns that do not fit are continued in
another band below. Each row ends with its largest weight and that column's label, so that no value
is shown by a shade alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import UsageError
from weft.look.terminal import display_width, legend, pad, shade, truncate, visible

MAX_LABEL_WIDTH = 14
"""Width of a label in terminal columns; longer ones are truncated."""


def heat_map(
    weights_TS: NDArray[np.floating],
    rows: Sequence[str],
    columns: Sequence[str],
    width: int = 80,
    is_ascii: bool = False,
) -> list[str]:
    """The lines of the map: for each band of columns a header and one line per row; then the
    legend."""
    check_labels(weights_TS, rows, columns)
    row_labels = [truncate(visible(label, is_ascii), MAX_LABEL_WIDTH) for label in rows]
    labels = [truncate(visible(label, is_ascii), MAX_LABEL_WIDTH) for label in columns]
    left = max(map(display_width, row_labels))
    tails = [largest(row_S, labels) for row_S in weights_TS]
    cells_width = width - left - 2 - max(map(display_width, tails)) - 2
    lines: list[str] = []
    for band in bands(labels, cells_width):
        lines.append(
            " " * (left + 2) + " ".join(pad(labels[i], cell_width(labels[i])) for i in band)
        )
        for label, row_S, tail in zip(row_labels, weights_TS, tails, strict=True):
            cells = " ".join(shade(row_S[i], is_ascii) * cell_width(labels[i]) for i in band)
            lines.append(f"{pad(label, left)}  {cells}  {tail}")
        lines.append("")
    return [line.rstrip() for line in (*lines, legend(is_ascii))]


def check_labels(
    weights_TS: NDArray[np.floating], rows: Sequence[str], columns: Sequence[str]
) -> None:
    if weights_TS.shape != (len(rows), len(columns)) or 0 in weights_TS.shape:
        raise UsageError(
            f"weights have shape {weights_TS.shape} but there are {len(rows)} row labels and "
            f"{len(columns)} column labels: there must be one label per row and "
            "column, and at least one of each."
        )


def cell_width(label: str) -> int:
    """Width of the cells under a label."""
    return max(2, display_width(label))


def largest(row_S: NDArray[np.floating], labels: Sequence[str]) -> str:
    """The column with the largest weight of a row, and that weight."""
    best = int(row_S.argmax())
    return f"{labels[best]} {row_S[best]:.2f}"


def bands(labels: Sequence[str], width: int) -> Iterator[list[int]]:
    """Indices of the columns that fit next to each other; at least one per band."""
    band: list[int] = []
    used = 0
    for index, label in enumerate(labels):
        needed = cell_width(label) + 1
        if band and used + needed - 1 > width:
            yield band
            band, used = [], 0
        band.append(index)
        used += needed
    yield band
