"""A map of attention weights in shaded blocks, two columns per cell: weights_TS -> lines.

                      I  ea ap .
      0 I             ##-----------
      1 eat           ## .. ------       I 0.91
      2 apple            ++ ** ---     eat 0.62

A cell is as wide as one Chinese character. Cells that do not fit continue in another band below.
Cells that the mask excludes are crossed out, not just empty. Each row ends with its largest weight.
Above `max_cells` rows or columns, each cell is the mean of several, which the last line says.
Differs from heatmap.py, whose columns are as wide as their labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.look.bars import ViewStyle
from weft.look.heatmap import check_labels
from weft.look.terminal import ASCII_SPACE, SPACE, display_width, legend, pad, shade, truncate

MAX_ROW_LABEL = 12
MAX_CELLS = 64
MASKED, ASCII_MASKED = "\u00b7\u00b7", "--"
"""A cell that the mask excludes."""


@dataclass(frozen=True)
class WeightMap:
    """Weights with the labels of rows and columns; NaN where the mask excludes a cell."""

    weights_TS: NDArray[np.floating]
    rows: Sequence[str]
    columns: Sequence[str]


def block_map(
    weights_TS: NDArray[np.floating],
    rows: Sequence[str],
    columns: Sequence[str],
    style: ViewStyle,
    mask_TS: NDArray[np.bool_] | None = None,
    max_cells: int = MAX_CELLS,
) -> list[str]:
    """The lines of the map. `mask_TS`: where attention is allowed; None: everywhere."""
    check_labels(weights_TS, rows, columns)
    masked_TS = weights_TS if mask_TS is None else np.where(mask_TS, weights_TS, np.nan)
    whole = WeightMap(masked_TS, rows, columns)
    one, size = reduced(whole, max_cells)
    labels = [f"{i * size} {truncate(label, MAX_ROW_LABEL)}" for i, label in enumerate(one.rows)]
    left = max(map(display_width, labels))
    tails = [strongest(row_S, one.columns, size) for row_S in one.weights_TS]
    tail = max(map(display_width, tails))
    number = max(1, (style.width - left - 4 - tail) // 2)
    lines: list[str] = []
    for start in range(0, len(one.columns), number):
        band = slice(start, start + number)
        heads = [two_columns(label) for label in one.columns[band]]
        if start:
            lines.append("")
        lines.append(" " * (left + 2) + "".join(heads))
        for label, row_S, end in zip(labels, one.weights_TS, tails, strict=True):
            cells = "".join(cell(weight, style.is_ascii) for weight in row_S[band])
            lines.append(f"{pad(label, left)}  {cells}  {end}")
    masked = f"  {ASCII_MASKED if style.is_ascii else MASKED} masked" if mask_TS is not None else ""
    lines += ["", legend(style.is_ascii) + masked]
    if size > 1:
        lines.append(
            f"each cell is the mean of {size} x {size} weights; labels are the first of them"
        )
    return [line.rstrip() for line in lines]


def two_columns(label: str) -> str:
    """The beginning of a label in exactly two columns, without the mark of a space or the bracket
    of a byte before it."""
    text = label.lstrip(SPACE + ASCII_SPACE + "<") or label
    kept = ""
    for char in text:
        if display_width(kept + char) > 2:
            break
        kept += char
    return pad(kept, 2)


def cell(weight: float, is_ascii: bool) -> str:
    if np.isnan(weight):
        return ASCII_MASKED if is_ascii else MASKED
    return shade(float(weight), is_ascii) * 2


def strongest(row_S: NDArray[np.floating], labels: Sequence[str], size: int) -> str:
    """The label and the weight of the largest weight of a row."""
    if np.isnan(row_S).all():
        return "-"
    best = int(np.nanargmax(row_S))
    return f"{truncate(labels[best], MAX_ROW_LABEL)} {row_S[best]:.2f}"


def reduced(whole: WeightMap, max_cells: int) -> tuple[WeightMap, int]:
    """The map with at most `max_cells` rows and columns, each cell the mean of size x size weights
    that the mask allows, and that size."""
    T, S = whole.weights_TS.shape
    size = -(-max(T, S) // max_cells)
    if size == 1:
        return whole, 1
    rows, columns = -(-T // size), -(-S // size)
    padded = np.full((rows * size, columns * size), np.nan)
    padded[:T, :S] = whole.weights_TS
    blocks = padded.reshape(rows, size, columns, size)
    is_known = ~np.isnan(blocks)
    count = is_known.sum((1, 3))
    total = np.where(is_known, blocks, 0.0).sum((1, 3))
    means = np.divide(total, count, out=np.full((rows, columns), np.nan), where=count > 0)
    return WeightMap(means, whole.rows[::size], whole.columns[::size]), size
