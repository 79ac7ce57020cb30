"""Rows of measurements -> a table for people and a plot.

The table has a line for each kernel, pattern and length. The plot has two panels on logarithmic
axes, seconds and bytes over the length, where a cost that is linear in the length is a line of
slope 1 and a squared one of slope 2.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.bench.attention import PASSES, Row
from weft.core.errors import UsageError

COLUMNS = ("kernel", "pattern", "length", *(f"{name}, s" for name in PASSES), "peak extra MB")

Series = dict[tuple[str, str], list[Row]]


def table(rows: Sequence[Row]) -> list[list[Any]]:
    """Cells in the order of COLUMNS; the peak is that of both passes."""
    grouped: dict[tuple[str, str, int], dict[str, Row]] = defaultdict(dict)
    for row in rows:
        grouped[row.kernel, row.pattern, row.length][row.passed] = row
    return [
        [*key, *(found[name].seconds for name in PASSES), found[PASSES[-1]].peak_bytes / 1e6]
        for key, found in grouped.items()
    ]


def plot(rows: Sequence[Row], path: Path) -> None:
    """Write a figure of both passes together; the ending of the file's name chooses its format."""
    figure = new_figure(path, 11, 4.5)
    left, right = figure.subplots(1, 2)
    series = series_of(rows)
    draw(left, series, "seconds", "seconds, forward and backward")
    draw(right, series, "peak_bytes", "peak extra bytes")
    figure.legend(*left.get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    save(figure, path)


def new_figure(path: Path, width: float, height: float) -> Any:
    """An empty figure, in inches; `path` is where it is to go."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError(
            f"cannot draw {path}: matplotlib is not installed. Use pip install 'weft[bench]'."
        ) from None
    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Any, path: Path) -> None:
    try:
        figure.savefig(path)
    except ValueError as error:
        raise UsageError(f"cannot draw {path}: {error}. Use a name that ends in .png.") from None


def series_of(rows: Sequence[Row]) -> Series:
    """Rows of both passes together, by kernel and pattern, in order of length."""
    found: Series = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.length):
        if row.passed == PASSES[-1]:
            found[row.kernel, row.pattern].append(row)
    return found


def draw(axes: Any, series: Series, value: str, title: str) -> None:
    """One panel: a line for each kernel and pattern."""
    styles = {"reference": ":", "flash": "--", "sparse": "-"}
    colours = {pattern: f"C{i}" for i, pattern in enumerate(sorted({key[1] for key in series}))}
    for (kernel, pattern), rows in series.items():
        axes.plot(
            [row.length for row in rows],
            [max(getattr(row, value), 1e-9) for row in rows],
            linestyle=styles.get(kernel, "-."),
            color=colours[pattern],
            marker="o",
            label=f"{kernel}, {pattern}",
        )
    axes.set(xscale="log", yscale="log", xlabel="tokens", title=title)
    axes.grid(visible=True, which="major", alpha=0.3)
