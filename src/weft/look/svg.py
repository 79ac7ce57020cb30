"""A picture of one attention head: weights_TS and labels -> SVG (standalone XML).

A T x S grid; the darker a cell, the larger its weight; each cell has its weight as a tooltip
(<title>), and masked cells are hatched. Labels are text, so they can be searched and read aloud.
Characters that XML does not allow, and those that change the direction of text (bidi marks), are
written as escapes. The direction of each label is isolated (unicode-bidi), so that Arabic in one
label moves no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import UsageError
from weft.look.heatmap import check_labels
from weft.look.terminal import display_width, printable, truncate

CELL, FONT_SIZE, GAP = 20, 12, 8
"""Pixels: side of a cell, size of text, distance of labels."""
COLUMN_WIDTH = 7.5
"""Pixels of one terminal column of text."""
MAX_LABEL_WIDTH = 24
MAX_TOKENS = 256
"""Of one side: 65,536 cells, a file of some megabytes."""
RAMP = ((255, 255, 255), (124, 155, 201), (0, 34, 78))
"""Colors of the weights 0, 0.5 and 1."""
STYLE = (
    "text{font:12px ui-monospace,monospace;fill:#1b1b19;unicode-bidi:isolate}"
    ".title{font-weight:600}.muted{fill:#5e5e59}"
    "rect{stroke:#deded9;stroke-width:.5}"
)
HATCH = (
    '<defs><pattern id="masked" width="6" height="6" patternUnits="userSpaceOnUse">'
    '<path d="M0 6L6 0" stroke="#8a8a84" stroke-width=".8"/></pattern></defs>'
)


@dataclass(frozen=True)
class HeadPicture:
    """What is drawn."""

    title: str
    weights_TS: NDArray[np.floating]
    rows: Sequence[str]
    columns: Sequence[str]
    mask_TS: NDArray[np.bool_] | None = None
    """Where attention is allowed; None: everywhere."""

    @property
    def left(self) -> float:
        """Where the cells begin: after the longest row label."""
        return GAP * 2 + COLUMN_WIDTH * max(display_width(safe(label)) for label in self.rows)

    @property
    def top(self) -> float:
        """Where the cells begin: below the title and the turned column labels."""
        longest = max(display_width(safe(label)) for label in self.columns)
        return 2 * CELL + GAP + COLUMN_WIDTH * longest


def head_svg(picture: HeadPicture) -> str:
    """The picture as a standalone SVG document."""
    check_labels(picture.weights_TS, picture.rows, picture.columns)
    T, S = picture.weights_TS.shape
    if max(T, S) > MAX_TOKENS:
        raise UsageError(
            f"the head has {T} x {S} weights: a picture has at most {MAX_TOKENS} rows and columns. "
            "Use --window a:b for a part of the text."
        )
    title = escape(safe(picture.title, 10**6))
    width = max(picture.left + S * CELL + GAP, GAP * 2 + COLUMN_WIDTH * display_width(title))
    height = picture.top + T * CELL + 2 * CELL
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>{title}</title>",
        f"<style>{STYLE}</style>",
        HATCH,
        '<rect width="100%" height="100%" fill="#ffffff" style="stroke:none"/>',
        f'<text class="title" x="{GAP}" y="{CELL}">{title}</text>',
        *labels(picture),
        *cells(picture),
        *scale(picture),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def labels(picture: HeadPicture) -> Iterator[str]:
    """Row labels on the left, column labels turned by 90 degrees above the cells."""
    for i, label in enumerate(picture.rows):
        y = picture.top + i * CELL + CELL / 2 + FONT_SIZE / 3
        yield (
            f'<text x="{picture.left - GAP:.1f}" y="{y:.1f}" text-anchor="end"'
            f"{attributes(label)}>{escape(safe(label))}</text>"
        )
    for i, label in enumerate(picture.columns):
        x, y = picture.left + i * CELL + CELL / 2 + FONT_SIZE / 3, picture.top - GAP
        yield (
            f'<text transform="translate({x:.1f} {y:.1f}) rotate(-90)"'
            f"{attributes(label)}>{escape(safe(label))}</text>"
        )


def attributes(label: str) -> str:
    """The language of a label, so that viewers choose the right form of a character."""
    is_chinese = any("\u4e00" <= char <= "\u9fff" for char in label)
    return ' lang="zh"' if is_chinese else ""


def cells(picture: HeadPicture) -> Iterator[str]:
    """The cells with their weights as tooltips."""
    mask_TS = picture.mask_TS
    for t, row in enumerate(picture.rows):
        y = picture.top + t * CELL
        for s, column in enumerate(picture.columns):
            weight = float(picture.weights_TS[t, s])
            is_masked = mask_TS is not None and not mask_TS[t, s]
            text = (
                f"{safe(row)} \u2192 {safe(column)}: {'masked' if is_masked else f'{weight:.4f}'}"
            )
            fill = "url(#masked)" if is_masked else color(weight)
            yield (
                f'<rect x="{picture.left + s * CELL:.1f}" y="{y:.1f}" width="{CELL}" '
                f'height="{CELL}" fill={quoteattr(fill)}><title>{escape(text)}</title></rect>'
            )


def scale(picture: HeadPicture) -> Iterator[str]:
    """The colors of the weights from 0 to 1, below the cells."""
    y = picture.top + len(picture.rows) * CELL + GAP
    for i, weight in enumerate((0.0, 0.25, 0.5, 0.75, 1.0)):
        x = picture.left + i * 2 * CELL
        yield (
            f'<rect x="{x:.1f}" y="{y:.1f}" width="12" height="12" fill="{color(weight)}"/>'
            f'<text class="muted" x="{x + 15:.1f}" y="{y + 10:.1f}">{weight:.4g}</text>'
        )


def color(weight: float) -> str:
    """The color of a weight between 0 and 1, as #rrggbb."""
    place = min(max(weight, 0.0), 1.0) * (len(RAMP) - 1)
    index = min(int(place), len(RAMP) - 2)
    share = place - index
    parts = zip(RAMP[index], RAMP[index + 1], strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in parts)


def safe(text: str, width: int = MAX_LABEL_WIDTH) -> str:
    """The text without characters that XML excludes or that change the direction of others."""
    return truncate(printable(text), width)
