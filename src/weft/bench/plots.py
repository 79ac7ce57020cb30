"""Rows of measurements -> tables and plots.

Attention: a row for each kernel, pattern and length; the plot has two panels on logarithmic axes,
seconds and bytes over the length, where a cost linear in the length has slope 1 and a quadratic one
slope 2. Systems: a row for each workload and system; the plot has a panel for each workload.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.bench.attention import PASSES, AttentionTiming
from weft.checkpoint.atomic import disk_errors
from weft.core.errors import UsageError

ATTENTION_COLUMNS = (
    *("kernel", "pattern", "length"),
    *(f"{name}, s" for name in PASSES),
    "peak extra MB",
)
SystemRow = Mapping[str, Any]
Series = dict[tuple[str, str], list[AttentionTiming]]

MEASURES = {
    "tokens_per_second": "tokens/s",
    "hit_rate": "hit rate",
    "row_share": "share of KV rows in use",
    "milliseconds": "ms per plan",
    "itl_p95": "s between tokens, p95",
}
"""The number that a row of a system has, and its unit."""
EXTRAS = {
    "sentences_per_second": "sentences/s",
    "idle_tokens_per_second": "idle",
    "fair_tokens_per_second": "fair share",
    "share_reached": "share reached",
    "same_as_idle": "same tokens as idle",
    "optimal_hit_rate": "optimal hit rate",
    "same_as_weft": "same tokens as weft",
    "identical": "identical",
    "commit_milliseconds": "ms per commit",
    "p95_ratio": "p95/alone",
    "max_ratio": "maximum/alone",
    "ttft_p50": "TTFT p50, ms",
    "ttft_p99": "TTFT p99, ms",
    "tpot_p50": "TPOT p50, ms",
    "tpot_p99": "TPOT p99, ms",
    "engine_tokens_per_second": "engine alone, tokens/s",
    "generator_cpu_seconds": "generator's CPU, s",
    "ready_seconds": "ready, s",
    "ttft": "TTFT, s",
    "ttft_ratio": "TTFT/alone",
    "note": "settings",
}
"""Further values that a row may have."""


def attention_table(rows: Sequence[AttentionTiming]) -> list[list[Any]]:
    """Cells in the order of ATTENTION_COLUMNS; the peak is that of forward and backward."""
    grouped: dict[tuple[str, str, int], dict[str, AttentionTiming]] = defaultdict(dict)
    for row in rows:
        grouped[row.kernel, row.pattern, row.length][row.passed] = row
    return [
        [*key, *(by_pass[name].seconds for name in PASSES), by_pass[PASSES[-1]].peak_bytes / 1e6]
        for key, by_pass in grouped.items()
    ]


def plot_attention(rows: Sequence[AttentionTiming], path: Path) -> None:
    """Write a figure of forward and backward; the file's suffix selects the format."""
    figure = new_figure(path, 11, 4.5)
    left, right = figure.subplots(1, 2)
    series = attention_series(rows)
    draw_series(left, series, "seconds", "seconds, forward and backward")
    draw_series(right, series, "peak_bytes", "peak extra bytes")
    figure.legend(*left.get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    save_figure(figure, path)


def attention_series(rows: Sequence[AttentionTiming]) -> Series:
    """Rows of forward and backward, by kernel and pattern, in order of length."""
    series: Series = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.length):
        if row.passed == PASSES[-1]:
            series[row.kernel, row.pattern].append(row)
    return series


def draw_series(axes: Any, series: Series, value: str, title: str) -> None:
    """One panel: a line for each kernel and pattern."""
    styles = {"reference": ":", "flash": "--", "sparse": "-"}
    colors = {pattern: f"C{i}" for i, pattern in enumerate(sorted({key[1] for key in series}))}
    for (kernel, pattern), rows in series.items():
        axes.plot(
            [row.length for row in rows],
            [max(getattr(row, value), 1e-9) for row in rows],
            linestyle=styles.get(kernel, "-."),
            color=colors[pattern],
            marker="o",
            label=f"{kernel}, {pattern}",
        )
    axes.set(xscale="log", yscale="log", xlabel="tokens", title=title)
    axes.grid(visible=True, which="major", alpha=0.3)


def measure_of(row: SystemRow) -> str:
    """The key of a row's number."""
    return next(name for name in MEASURES if name in row)


def system_table(rows: Sequence[SystemRow]) -> tuple[list[str], list[list[Any]]]:
    """Columns and cells: workload, system, number and unit, and the extras that a row has."""
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


def goal_table(goals: Sequence[SystemRow]) -> tuple[list[str], list[list[Any]]]:
    columns = ["goal", "measured", "asked", "met"]
    keys = ("goal", "measured", "asked", "is_met")
    return columns, [[goal[key] for key in keys] for goal in goals]


def plot_systems(rows: Sequence[SystemRow], path: Path) -> None:
    """Write a figure with a panel for each workload; the file's suffix selects the format."""
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    systems = list(dict.fromkeys(row["system"] for row in rows))
    figure = new_figure(path, 2.4 * len(workloads) + 2.0, 4.0)
    panels = figure.subplots(1, len(workloads), squeeze=False)[0]
    for axes, workload in zip(panels, workloads, strict=True):
        shown = [row for row in rows if row["workload"] == workload]
        measure = measure_of(shown[0])
        colors = [f"C{systems.index(row['system'])}" for row in shown]
        bars = axes.bar(range(len(shown)), [row[measure] for row in shown], color=colors)
        axes.bar_label(bars, fmt="{:,.4g}", fontsize="small")
        labels = [row["system"].replace(" ", "\n", 1) for row in shown]
        axes.set_xticks(range(len(shown)), labels, rotation=45, ha="right", fontsize="small")
        axes.margins(y=0.15)
        axes.set(title=workload, ylabel=MEASURES[measure])
    save_figure(figure, path)


SERVER_MEASURES = {
    "tokens_per_second": "tokens/s",
    "ttft_p50": "TTFT p50, ms",
    "tpot_p50": "TPOT p50, ms",
}


def plot_servers(rows: Sequence[SystemRow], path: Path) -> None:
    """Write a figure with a row of panels for each measure and a panel for each workload."""
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    systems = list(dict.fromkeys(row["system"] for row in rows))
    figure = new_figure(path, 2.4 * len(workloads) + 2.0, 8.0)
    panels = figure.subplots(len(SERVER_MEASURES), len(workloads), squeeze=False)
    for line, (measure, unit) in zip(panels, SERVER_MEASURES.items(), strict=True):
        for axes, workload in zip(line, workloads, strict=True):
            shown = [row for row in rows if row["workload"] == workload and row.get(measure)]
            colors = [f"C{systems.index(row['system'])}" for row in shown]
            bars = axes.bar(range(len(shown)), [row[measure] for row in shown], color=colors)
            axes.bar_label(bars, fmt="{:,.4g}", fontsize="small")
            labels = [row["system"].replace(" ", "\n", 1) for row in shown]
            axes.set_xticks(range(len(shown)), labels, rotation=45, ha="right", fontsize="small")
            axes.margins(y=0.15)
            axes.set(title=workload, ylabel=unit)
    save_figure(figure, path)


def new_figure(path: Path, width: float, height: float) -> Any:
    """An empty figure in inches; `path` is for the message."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError(
            f"cannot draw {path}: matplotlib is not installed. Use pip install 'weft[bench]'."
        ) from None
    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, path: Path) -> None:
    try:
        with disk_errors(path):
            figure.savefig(path)
    except ValueError as error:
        raise UsageError(f"cannot draw {path}: {error}. Use a name that ends in .png.") from None
