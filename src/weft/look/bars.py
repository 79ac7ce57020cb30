"""Bars and tables as text: labels and values -> lines that are aligned in terminal columns.

      apple  ################     0.62
      it     ###                  0.12
      others (5)                  0.18

A bar has a resolution of an eighth of a column, or of a column in ASCII. Its value is printed, so
that nothing is known by length alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from weft.look.terminal import display_width, pad, truncate

EIGHTHS = ("", *map(chr, range(0x258F, 0x2587, -1)))
"""Blocks of one to eight eighths."""
MAX_LABEL_WIDTH = 20
MAX_BAR_WIDTH = 32
MIN_SHOWN = 0.005
"""A smaller value is 0.00 in two digits."""
COLUMN_GAP = "  "


@dataclass(frozen=True)
class ViewStyle:
    """How views are printed: columns, and whether only ASCII may be used for what is drawn."""

    width: int = 80
    is_ascii: bool = False


def bar(share: float, width: int, is_ascii: bool = False) -> str:
    """A bar of `share` (0 to 1) of `width` columns."""
    share = min(max(share, 0.0), 1.0)
    if is_ascii:
        return "#" * round(share * width)
    full, rest = divmod(round(share * width * 8), 8)
    return EIGHTHS[8] * full + EIGHTHS[rest]


def bars(
    items: Sequence[tuple[str, float]],
    style: ViewStyle,
    limit: int = 8,
    scale: float = 1.0,
    note: Sequence[str] = (),
    smallest: float = MIN_SHOWN,
) -> list[str]:
    """The `limit` largest values as bars, largest first; the others, and those below `smallest`, as
    their number and sum. `scale`: the value of a bar of full width. `note`: one more column, by
    item."""
    order = sorted(range(len(items)), key=lambda i: -items[i][1])
    limit = max(1, min(limit, sum(value >= smallest for _, value in items)))
    label_width = min(MAX_LABEL_WIDTH, style.width // 3)
    labels = [truncate(items[i][0], label_width) for i in order[:limit]]
    others = order[limit:]
    rest = f"others ({len(others)})" if others else ""
    left = max(map(display_width, [*labels, rest]), default=0)
    notes = [note[i] if note else "" for i in order[:limit]]
    tail = max(map(display_width, notes), default=0)
    room = max(0, min(MAX_BAR_WIDTH, style.width - left - tail - 13))
    drawn = [bar(items[i][1] / scale, room, style.is_ascii) for i in order[:limit]]
    longest = max(map(display_width, drawn), default=0)
    lines = [
        f"  {pad(label, left)}  {pad(line, longest)}  {items[i][1]:.2f}  {extra}".rstrip()
        for i, label, line, extra in zip(order, labels, drawn, notes, strict=False)
    ]
    if others:
        total = sum(items[i][1] for i in others)
        lines.append(f"  {pad(rest, left)}  {' ' * longest}  {total:.2f}")
    return lines


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1, indent: str = "  "
) -> list[str]:
    """Rows under a header: the first `left` columns start at the left, the others are numbers and
    end at the right."""
    widths = [max(map(display_width, cells)) for cells in zip(columns, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = [
            pad(cell, width) if i < left else " " * (width - display_width(cell)) + cell
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return (indent + COLUMN_GAP.join(padded)).rstrip()

    return [line(columns), *map(line, rows)]


def in_columns(cells: Sequence[str], width: int, indent: str = "  ") -> list[str]:
    """Cells of equal meaning in as many columns as fit, in reading order down each column."""
    if not cells:
        return []
    widest = max(map(display_width, cells))
    number = max(1, (width - len(indent) + 2) // (widest + 2))
    height = -(-len(cells) // number)
    return [
        (indent + COLUMN_GAP.join(pad(cell, widest) for cell in cells[row::height])).rstrip()
        for row in range(height)
    ]


def wrapped_cells(cells: Sequence[str], width: int, indent: str = "") -> Iterator[str]:
    """Cells one after another, separated by a space, in lines of at most `width` columns."""
    line = ""
    for cell in cells:
        longer = f"{line} {cell}" if line else indent + cell
        if line and display_width(longer) > width:
            yield line
            longer = indent + cell
        line = longer
    if line:
        yield line
