"""Curves as text: braille dots, two columns and four rows per character, with axes and a legend.

2.914 |*
      | **
      |   ****
1.775 |       ******
      1           120
      * loss
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.cli.run_metrics import Curve

DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille character by row and column."""
BRAILLE = 0x2800
MARKS = "*o+x#@%&"
"""Of several curves, or where the locale has no braille."""
LABEL = 10
"""Columns of the numbers at the left."""


def draw_curves(curves: Sequence[Curve], width: int, height: int, is_ascii: bool) -> str:
    """The curves in `height` rows, with axes and a legend below. A single curve is drawn in braille
    dots; of several each has its own mark."""
    columns = max(10, width - LABEL - 3)
    finite = [v for c in curves for v in c.values if math.isfinite(v)]
    if not finite:
        return "no value is finite"
    all_steps = [step for curve in curves for step in curve.steps]
    steps, values = (min(all_steps), max(all_steps)), (min(finite), max(finite))
    is_dotted = len(curves) == 1 and not is_ascii
    if is_dotted:
        rows = braille_rows(
            path(curves[0], steps, values, 2 * columns, 4 * height), columns, height
        )
    else:
        rows = [[" "] * columns for _ in range(height)]
        for number, curve in enumerate(curves):
            for x, y in path(curve, steps, values, columns, height):
                rows[y][x] = MARKS[number % len(MARKS)]
    return "\n".join([*axis_lines(rows, *values), *footer(curves, *steps, columns, is_dotted)])


def braille_rows(dots: Sequence[tuple[int, int]], columns: int, height: int) -> list[list[str]]:
    """Dots as characters of two by four of them."""
    bits = [[0] * columns for _ in range(height)]
    for x, y in dots:
        bits[y // 4][x // 2] |= DOTS[y % 4][x % 2]
    return [[chr(BRAILLE + bit) if bit else " " for bit in row] for row in bits]


def path(
    curve: Curve,
    steps: tuple[int, int],
    values: tuple[float, float],
    columns: int,
    rows: int,
) -> list[tuple[int, int]]:
    """The dots of a curve, its points joined by lines."""

    def place(step: int, value: float) -> tuple[int, int]:
        x = (step - steps[0]) / max(1, steps[1] - steps[0])
        y = (value - values[0]) / ((values[1] - values[0]) or 1)
        return round(x * (columns - 1)), round((1 - y) * (rows - 1))

    pairs = zip(curve.steps, curve.values, strict=True)
    places = [place(step, value) for step, value in pairs if math.isfinite(value)]
    dots = list(places)
    for (x0, y0), (x1, y1) in zip(places, places[1:], strict=False):
        count = max(abs(x1 - x0), abs(y1 - y0))
        for i in range(1, count):
            dots.append((round(x0 + (x1 - x0) * i / count), round(y0 + (y1 - y0) * i / count)))
    return dots


def axis_lines(rows: Sequence[Sequence[str]], low: float, high: float) -> list[str]:
    """The rows with the highest, middle and lowest value at the left."""
    last = len(rows) - 1
    labels = {0: high, last // 2: high + (low - high) * (last // 2) / max(1, last), last: low}
    return [
        f"{f'{labels[i]:.4g}' if i in labels else '':>{LABEL}} |{''.join(row)}".rstrip()
        for i, row in enumerate(rows)
    ]


def footer(
    curves: Sequence[Curve], first: int, last: int, columns: int, is_dotted: bool
) -> list[str]:
    """The first and the last step, and the curves with their last values."""
    indent = " " * (LABEL + 2)
    end = f"step {last:,}"
    lines = [f"{indent}{first:,}{end:>{max(1, columns - len(f'{first:,}'))}}"]
    for number, curve in enumerate(curves):
        mark = "" if is_dotted else f"{MARKS[number % len(MARKS)]} "
        lines.append(
            f"{indent}{mark}{curve.name}: {curve.values[-1]:.4g} at step {curve.steps[-1]:,}"
        )
    return lines
