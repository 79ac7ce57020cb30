"""weights_TS and labels -> lines of shaded blocks, as wide as a terminal.

       Sa ., 5  . August 1  9  0  5
    8             ######                 August 0.93

A column is as wide as its label, two at least; columns that do not fit go into a further band.
Each row names its strongest column with the number, so that no value is told by a shade alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import UsageError
from weft.look.terminal import cut, display_width, legend, pad, shade, visible

LONGEST = 14
"""Columns that a label may take; longer ones are cut."""


def heat_map(
    weights_TS: NDArray[np.floating],
    rows: Sequence[str],
    columns: Sequence[str],
    width: int = 80,
    is_ascii: bool = False,
) -> list[str]:
    """The lines of the map: a header, one line a row, for each band of columns; then the legend."""
    check_labels(weights_TS, rows, columns)
    row_labels = [cut(visible(label, is_ascii), LONGEST) for label in rows]
    labels = [cut(visible(label, is_ascii), LONGEST) for label in columns]
    left = max(map(display_width, row_labels))
    tails = [strongest(row_S, labels) for row_S in weights_TS]
    room = width - left - 2 - max(map(display_width, tails)) - 2
    lines: list[str] = []
    for band in bands(labels, room):
        lines.append(
            " " * (left + 2) + " ".join(pad(labels[i], columns_of(labels[i])) for i in band)
        )
        for label, row_S, tail in zip(row_labels, weights_TS, tails, strict=True):
            cells = " ".join(shade(row_S[i], is_ascii) * columns_of(labels[i]) for i in band)
            lines.append(f"{pad(label, left)}  {cells}  {tail}")
        lines.append("")
    return [line.rstrip() for line in (*lines, legend(is_ascii))]


def check_labels(
    weights_TS: NDArray[np.floating], rows: Sequence[str], columns: Sequence[str]
) -> None:
    if weights_TS.shape != (len(rows), len(columns)) or 0 in weights_TS.shape:
        raise UsageError(
            f"weights have shape {weights_TS.shape} but there are {len(rows)} row labels and "
            f"{len(columns)} column labels: give one label a row and one a column, of each at "
            "least one."
        )


def columns_of(label: str) -> int:
    """Width of the cells under a label."""
    return max(2, display_width(label))


def strongest(row_S: NDArray[np.floating], labels: Sequence[str]) -> str:
    """The column with the largest weight of a row, and that weight."""
    best = int(row_S.argmax())
    return f"{labels[best]} {row_S[best]:.2f}"


def bands(labels: Sequence[str], room: int) -> Iterator[list[int]]:
    """Numbers of the columns that stand side by side; at least one in a band."""
    band: list[int] = []
    used = 0
    for index, label in enumerate(labels):
        needed = columns_of(label) + 1
        if band and used + needed - 1 > room:
            yield band
            band, used = [], 0
        band.append(index)
        used += needed
    yield band
