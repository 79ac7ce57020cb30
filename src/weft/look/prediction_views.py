"""What a model predicts, as text: the logit lens, and changes of logits by ablated heads.

layer   the | cat       The cell of a layer and a position is the most likely next token
    0   a .12 | dog .31     after that layer, with its probability.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.look.ablation import changes, total_change
from weft.look.bars import ViewStyle, table
from weft.look.logit_lens import logit_lens
from weft.look.terminal import display_width, pad, truncate
from weft.look.trace import Trace
from weft.look.trace_data import NextToken
from weft.look.trace_views import Selection, check_size, label_of, token_name

LENS_LABEL = 7
"""Columns of a token in the grid of the lens."""
NUM_CHANGES = 10


def lens_view(trace: Trace, style: ViewStyle, selection: Selection | None = None) -> list[str]:
    """The logit lens: of the last selected token the best of each layer, or a grid of all
    positions."""
    if selection is not None:
        return lens_of_token(trace, style, selection)
    stack = trace.model.main_part
    check_size(trace, stack, "--lens")
    lens = logit_lens(trace)
    side = trace.side_of(stack)
    names = [token_name(trace, side, i, style.is_ascii) for i in lens.positions]
    cells = [[lens_cell(row[0], style) for row in rows] for rows in lens.top]
    width = LENS_LABEL + 4
    number = max(1, (style.width - 7) // (width + 1))
    lines = [f"logit lens of the {stack}: the most likely next token after each layer"]
    for start in range(0, len(names), number):
        band = slice(start, start + number)
        heads = [pad(truncate(name, width), width) for name in names[band]]
        lines += ["", "layer  " + " ".join(heads).rstrip()]
        for layer, row in enumerate(cells):
            lines.append(f"{layer:>5}  " + " ".join(row[band]).rstrip())
    return lines


def lens_cell(one: NextToken, style: ViewStyle) -> str:
    """apple   .62, always of the same width."""
    label = pad(truncate(label_of(one, style.is_ascii), LENS_LABEL), LENS_LABEL)
    return f"{label} {short(one.p)}"


def short(p: float) -> str:
    """A probability in three characters: .62; 1.0 from 0.995 on."""
    return "1.0" if p >= 0.995 else f"{p:.2f}"[1:]


def lens_of_token(trace: Trace, style: ViewStyle, selection: Selection) -> list[str]:
    """The best tokens of each layer at one position, as many as fit."""
    position, stack = selection.tokens[-1], trace.model.main_part
    check_is_read(trace, selection)
    lens = logit_lens(trace, [position])
    lines = [f"logit lens of the {stack} after {selection.label} ({position}), by layer"]
    for layer, (best,) in enumerate(lens.top):
        line = f"{layer:>5} "
        for one in best:
            part = f"  {label_of(one, style.is_ascii)} {one.p:.2f}"
            if display_width(line + part) > style.width:
                break
            line += part
        lines.append(line)
    return lines


def check_is_read(trace: Trace, selection: Selection) -> None:
    """Assert that the selection is in the text that the predicting stack reads."""
    stack = trace.model.main_part
    assert selection.side == trace.side_of(stack), (
        f"the {stack} does not read {selection.label}, which is in {selection.side}"
    )


def ablation_view(trace: Trace, style: ViewStyle, position: int = -1) -> list[str]:
    """The logits of the most likely tokens with the ablated heads and without."""
    stack = trace.model.main_part
    side = trace.side_of(stack)
    index = position % len(trace.tokens[side])
    after = token_name(trace, side, index, style.is_ascii)
    heads = ", ".join(map(str, trace.ablated))
    rows: list[Sequence[str]] = []
    for one in changes(trace, index)[:NUM_CHANGES]:
        label = truncate(label_of(one.token, style.is_ascii), 24)
        logits = (f"{one.before:.3f}", f"{one.after:.3f}", f"{one.delta:+.3f}")
        rows.append((label, *logits, f"{one.token.p:.2f}"))
    return [
        f"next token after {after} ({index}) without {heads}",
        *table(("token", "logit", "without", "delta", "p"), rows),
        f"  divergence from the complete model: {total_change(trace, index):.4f} nats",
    ]
