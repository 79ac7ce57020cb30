"""Rows of systems side by side -> tables for people and a plot with a panel for each workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.bench.report import new_figure, save

Row = Mapping[str, Any]

MEASURES = {
    "tokens_per_second": "tokens/s",
    "hit_rate": "hit rate",
    "row_share": "share of rows that hold a token",
    "milliseconds": "milliseconds a plan",
}
"""What a row may be judged by; a row has one of them."""

EXTRAS = {
    "sentences_per_second": "sentences/s",
    "optimal_hit_rate": "optimal hit rate",
    "same_as_weft": "same tokens as weft",
    "identical": "identical",
    "commit_milliseconds": "milliseconds a commit",
    "note": "settings",
}
"""What a row may say besides."""


def measure_of(row: Row) -> str:
    """The name of the number that a row is judged by."""
    return next(name for name in MEASURES if name in row)


def table(rows: Sequence[Row]) -> tuple[list[str], list[list[Any]]]:
    """Columns and cells: workload, system, its number and what that is, and the extras in use."""
    extras = {key: name for key, name in EXTRAS.items() if any(row.get(key) for row in rows)}
    columns = ["workload", "system", "measured", "", *extras.values()]
    cells = [
        [
            row["workload"],
            row["system"],
            float(row[measure_of(row)]),
            MEASURES[measure_of(row)],
            *(row.get(key) for key in extras),
        ]
        for row in rows
    ]
    return columns, cells


def goal_table(goals: Sequence[Row]) -> tuple[list[str], list[list[Any]]]:
    columns = ["goal", "measured", "asked", "met"]
    keys = ("goal", "measured", "asked", "is_met")
    return columns, [[goal[key] for key in keys] for goal in goals]


def plot(rows: Sequence[Row], path: Path) -> None:
    """Write a figure; the ending of the file's name chooses its format."""
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    systems = list(dict.fromkeys(row["system"] for row in rows))
    figure = new_figure(path, 2.4 * len(workloads) + 2.0, 4.0)
    panels = figure.subplots(1, len(workloads), squeeze=False)[0]
    for axes, workload in zip(panels, workloads, strict=True):
        own = [row for row in rows if row["workload"] == workload]
        name = measure_of(own[0])
        colours = [f"C{systems.index(row['system'])}" for row in own]
        bars = axes.bar(range(len(own)), [row[name] for row in own], color=colours)
        axes.bar_label(bars, fmt="{:,.4g}", fontsize="small")
        labels = [row["system"].replace(" ", "\n", 1) for row in own]
        axes.set_xticks(range(len(own)), labels, rotation=45, ha="right", fontsize="small")
        axes.margins(y=0.15)
        axes.set(title=workload, ylabel=MEASURES[name])
    save(figure, path)
