"""A trace as text, view by view: Trace -> lines. `weft look` prints them, notebooks show the first.

    overview(trace, selection, style)     tokens with words, the sharpest head, the next tokens
    token_view    what a token looks at   head_view    the map of one head
    heads_view    all heads of a part     find_view    heads that link two words
    cross_view    alignment of two texts  steps_view   every stage with its first values

All numbers are those of the trace's arrays, rounded; a long text is printed from the rows that the
trace computes when asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import UsageError
from weft.look.alignment import alignment, joined_columns, joined_rows
from weft.look.bars import ViewStyle, bars, in_columns, wrapped_cells
from weft.look.block_map import block_map
from weft.look.head_table import head_statistics, head_table
from weft.look.rankings import HeadRank, HeadSearch, sharpest_head
from weft.look.terminal import display_width, pad, plural, truncate, visible
from weft.look.trace import Trace
from weft.look.trace_data import HeadName, NextToken, Stage, TraceToken
from weft.look.words import tokens_of_text

MAX_MAP_TOKENS = 512
"""Of a map or a table of heads: beyond, a single row is computed but not all of them."""
HEAD_COLUMNS = "entropy in bits, distance in tokens, first: the weight on the first token"
NUM_NEXT = 5
NUM_BEST_HEADS = 8


@dataclass(frozen=True)
class KeyGroup:
    """Tokens that are shown as one: those of a word, or a token that belongs to none."""

    label: str
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Selection:
    """What a view is about."""

    side: str
    """src or tgt."""
    tokens: tuple[int, ...]
    """The selected tokens, of one word or phrase."""
    label: str


def select(
    trace: Trace, word: str | None, part: str | None = None, is_ascii: bool = False
) -> Selection:
    """The tokens of a word (`word#2`: its second occurrence) where queries of `part` are; None: the
    last token. Without `part`: in the target if it is there, else in the text."""
    sides = [trace.side_of(part or trace.model.main_part)]
    if part is None and trace.model.kind == "encoder-decoder":
        sides = ["tgt", "src"]
    if word is None:
        last = trace.tokens[sides[0]][-1]
        return Selection(sides[0], (last.i,), label_of(last, is_ascii))
    for number, side in enumerate(sides, 1):
        try:
            tokens = tokens_of_text(trace.tokens[side], trace.text_of(side), word)
        except UsageError:
            if number < len(sides):
                continue
            raise
        return Selection(side, tokens, word)
    raise AssertionError("a selection without sides")


def label_of(token: TraceToken | NextToken, is_ascii: bool = False) -> str:
    """A token with visible spaces; bytes that are no text by themselves as <E8 8B>."""
    try:
        bytes.fromhex(token.bytes).decode()
    except UnicodeDecodeError:
        return f"<{token.text}>"
    return visible(token.text, is_ascii) or "(empty)"


def token_name(trace: Trace, side: str, index: int, is_ascii: bool = False) -> str:
    return label_of(trace.tokens[side][index], is_ascii)


def token_labels(trace: Trace, side: str, is_ascii: bool = False) -> list[str]:
    return [label_of(token, is_ascii) for token in trace.tokens[side]]


def key_groups(trace: Trace, side: str, is_ascii: bool = False) -> list[KeyGroup]:
    """All tokens of a side: words as one, others one by one, in the order of the text. Words that
    occur several times are numbered like in `word#2`."""
    groups: list[KeyGroup] = []
    names = [word.text for word in trace.words[side]]
    seen: dict[str, int] = {}
    for token in trace.tokens[side]:
        if token.word is None:
            groups.append(KeyGroup(label_of(token, is_ascii), (token.i,)))
            continue
        word = trace.words[side][token.word]
        if token.i != word.tokens[0]:
            continue
        seen[word.text] = seen.get(word.text, 0) + 1
        number = f"#{seen[word.text]}" if names.count(word.text) > 1 else ""
        groups.append(KeyGroup(visible(word.text, is_ascii) + number, tuple(word.tokens)))
    return groups


def row_of(trace: Trace, head: HeadName, rows: Sequence[int]) -> NDArray[np.float64]:
    """weights_S of a head from some tokens: the mean of their rows."""
    name = head.prefix + ".weights"
    parts = [trace.array(name, head=head.head, row=row) for row in rows]
    return np.stack(parts).mean(0, dtype=np.float64)


def check_size(trace: Trace, part: str, what: str) -> None:
    """Raise a UsageError for a view of all weights of a long text."""
    number = max(len(trace.tokens[trace.side_of(part, axis)]) for axis in ("query", "key"))
    if number > MAX_MAP_TOKENS:
        raise UsageError(
            f"{what} shows all weights of {number:,} tokens: at most {MAX_MAP_TOKENS} are allowed. "
            "Use --window a:b for a part of the text, or --token for one row."
        )


def tokens_view(trace: Trace, style: ViewStyle) -> list[str]:
    """Both texts as tokens: those of a word of several tokens in brackets."""
    lines: list[str] = []
    names = {"src": "text", "tgt": "target"}
    for side in trace.tokens:
        counts = plural(len(trace.tokens[side]), "token"), plural(len(trace.words[side]), "word")
        head = f"{names[side]} -> {', '.join(counts)}"
        cells = []
        for group in key_groups(trace, side, style.is_ascii):
            pieces = " ".join(token_name(trace, side, i, style.is_ascii) for i in group.tokens)
            cells.append(f"[{pieces}]" if len(group.tokens) > 1 else pieces)
        rows = list(wrapped_cells(cells, style.width, "  "))
        if len(rows) > 12:
            rows = [*rows[:11], f"  and {len(rows) - 11} more lines"]
        lines += [head, *rows]
    return lines


def overview(trace: Trace, style: ViewStyle, selection: Selection | None = None) -> list[str]:
    """Model, tokens, what the last token (or the selection) looks at most, and what comes next."""
    selection = selection or select(trace, None, is_ascii=style.is_ascii)
    lines = [model_line(trace, style), *tokens_view(trace, style), ""]
    lines += token_view(trace, selection, style)
    stack = trace.model.main_part
    if trace.candidates.get(stack):
        lines += ["", *next_view(trace, style)]
    notes = [f"note: {note}" for note in trace.limits.notes]
    return [*lines, "", *notes] if notes else lines


def model_line(trace: Trace, style: ViewStyle) -> str:
    model = trace.model
    layers = " + ".join(f"{number} layers" for number in model.layers)
    kv = f" ({model.kv_heads} KV)" if model.kv_heads != model.heads else ""
    facts = f"{model.kind}, {layers}, {model.heads} heads{kv}, width {model.width}"
    return truncate(
        f"model {model.name}: {facts}" if model.name else f"model: {facts}", style.width
    )


def parts_of_side(trace: Trace, side: str) -> list[str]:
    """The parts in which tokens of a side are queries."""
    return [part for part in trace.model.parts if trace.side_of(part) == side]


def token_view(
    trace: Trace, selection: Selection, style: ViewStyle, head: HeadName | None = None
) -> list[str]:
    """What the selected tokens look at, in one head, or in the sharpest of each part."""
    lines: list[str] = []
    for part in parts_of_side(trace, selection.side) if head is None else [head.part]:
        one = head or sharpest_head(trace, part, selection.tokens[-1])
        places = ", ".join(map(str, selection.tokens))
        kind = "" if head else ", the sharpest head of this token"
        lines += ["", f"{head_title(one)}{kind}: {selection.label} ({places}) looks at"]
        groups = key_groups(trace, trace.side_of(part, "key"), style.is_ascii)
        weights_S = row_of(trace, one, selection.tokens)
        sums = joined_columns(weights_S, [group.tokens for group in groups])
        lines += bars([(g.label, float(x)) for g, x in zip(groups, sums, strict=True)], style)
    return lines[1:]


def head_title(head: HeadName) -> str:
    return f"{head.part} layer {head.layer} head {head.head}"


def next_view(
    trace: Trace, style: ViewStyle, position: int = -1, number: int = NUM_NEXT
) -> list[str]:
    """The most likely next tokens at a position."""
    stack = trace.model.main_part
    rows = trace.candidates[stack]
    index = position % len(rows)
    side = trace.side_of(stack)
    after = token_name(trace, side, index, style.is_ascii)
    items = rows[index][:number]
    if not items:
        return [f"next token after {after} ({index}): not recorded for this position"]
    notes = [f"logit {one.logit:.2f}" for one in items]
    labels = [(label_of(one, style.is_ascii), one.p) for one in items]
    return [
        f"next token after {after} ({index})",
        *bars(labels, style, number, note=notes, smallest=0.0),
    ]


def head_arrays(
    trace: Trace, head: HeadName
) -> tuple[NDArray[np.floating], NDArray[np.bool_] | None]:
    """weights_TS of a head, and where its mask allows attention."""
    check_size(trace, head.part, f"the map of {head}")
    weights_TS = trace.array(head.prefix + ".weights", head=head.head)
    name = head.prefix + ".mask"
    mask_TS = trace.array(name) > 0 if trace.has(name) else None
    return weights_TS, None if mask_TS is None or mask_TS.all() else mask_TS


def head_view(trace: Trace, head: HeadName, style: ViewStyle) -> list[str]:
    """The map of one head."""
    weights_TS, mask_TS = head_arrays(trace, head)
    rows = token_labels(trace, trace.side_of(head.part), style.is_ascii)
    columns = token_labels(trace, trace.side_of(head.part, "key"), style.is_ascii)
    lines = block_map(weights_TS, rows, columns, style, mask_TS)
    return [f"{head_title(head)}: each row is what its token looks at", *lines]


def heads_view(
    trace: Trace, style: ViewStyle, part: str | None = None, selection: Selection | None = None
) -> list[str]:
    """A table of all heads of all parts, or of one; of the selected rows only, if given."""
    lines: list[str] = []
    parts = [part] if part else list(trace.model.parts)
    if selection is not None:
        parts = [one for one in parts if trace.side_of(one) == selection.side]
    for one in parts:
        if selection is None:
            check_size(trace, one, "--heads")
        number = len(trace.tokens[trace.side_of(one)])
        rows = range(number) if selection is None else selection.tokens
        of = f"of {selection.label}" if selection else f"means over {number} rows"
        lines += [f"{one}: heads, {of}", HEAD_COLUMNS]
        heads = []
        for layer in range(trace.model.parts[one]):
            name = HeadName(one, layer, 0).prefix + ".weights"
            if selection is None:
                weights_HTS = trace.array(name)
            else:
                weights_HTS = np.stack([trace.array(name, row=row) for row in rows], axis=1)
            for head, weights_TS in enumerate(weights_HTS):
                place = HeadName(one, layer, head)
                heads.append(head_statistics(str(place), weights_TS, list(rows), one != "cross"))
        lines += [*head_table(heads, style), ""]
    return lines[:-1]


def find_view(found: HeadSearch, style: ViewStyle) -> list[str]:
    """All heads by the weight of one word on another: the first as bars, the others in columns."""
    link = f"{found.query} -> {found.key}"
    number = len(found.heads)
    if found.first:
        best = found.first[0]
        title = (
            f"{found.part} heads where {link} is first: {len(found.first)} of {number} "
            f"(best {head_place(best)}: {best.weight:.2f})"
        )
    else:
        best = found.heads[0]
        title = (
            f"no {found.part} head puts {found.key} first for {found.query}: the largest of "
            f"{number} weights is {best.weight:.2f} in head {head_place(best)}, rank {best.rank} "
            f"of {best.num_words} words"
        )
    lines = list(wrapped_cells(title.split(" "), style.width))
    items = [(head_place(one), one.weight) for one in found.heads[:NUM_BEST_HEADS]]
    notes = [f"rank {one.rank} of {one.num_words}" for one in found.heads[:NUM_BEST_HEADS]]
    lines += bars(items, style, NUM_BEST_HEADS, note=notes, smallest=0.0)
    rest = [
        f"{head_place(one)} {one.weight:.2f} #{one.rank}" for one in found.heads[NUM_BEST_HEADS:]
    ]
    if rest:
        lines += [
            f"the other {len(rest)} heads, with weight and rank:",
            *in_columns(rest, style.width),
        ]
    lines.append(f"mean of all heads: {found.mean.weight:.2f}, rank {found.mean.rank}")
    if found.rollout is not None:
        lines[-1] += f"; rollout: {found.rollout.weight:.2f}, rank {found.rollout.rank}"
    lines.append("Attention is not an explanation: compare it with --ablate.")
    return lines


def head_place(one: HeadRank) -> str:
    return f"{one.name.layer}.{one.name.head}"


def cross_view(trace: Trace, style: ViewStyle, head: HeadName | None = None) -> list[str]:
    """What each target word looks at in the text: in one head, or in the mean of all heads of all
    layers; and the map."""
    if "cross" not in trace.model.parts:
        raise UsageError(
            f"this model is of kind {trace.model.kind}: only an encoder-decoder has "
            "cross-attention. Leave --cross out."
        )
    check_size(trace, "cross", "--cross")
    weights_TS = mean_of_cross(trace) if head is None else weights_of(trace, head)
    rows, columns = (key_groups(trace, side, style.is_ascii) for side in ("tgt", "src"))
    joined = joined_columns(weights_TS, [group.tokens for group in columns])
    words_TS = joined_rows(joined, [group.tokens for group in rows])
    title = "mean of all cross-attention heads" if head is None else head_title(head)
    labels = [group.label for group in rows], [group.label for group in columns]
    lines = [f"{title}: what the target looks at in the text"]
    lines += alignment(words_TS, *labels, style)
    return [*lines, "", *block_map(words_TS, *labels, style)]


def weights_of(trace: Trace, head: HeadName) -> NDArray[np.float64]:
    """weights_TS of one head."""
    return trace.array(head.prefix + ".weights", head=head.head).astype(np.float64)


def mean_of_cross(trace: Trace) -> NDArray[np.float64]:
    """weights_TS, the mean of all cross-attention heads of all layers."""
    layers = range(trace.model.parts["cross"])
    names = [HeadName("cross", layer, 0).prefix + ".weights" for layer in layers]
    return np.stack([trace.array(name).mean(0, dtype=np.float64) for name in names]).mean(0)


def steps_view(trace: Trace, style: ViewStyle) -> list[str]:
    """Every stage in two lines: name, shape, formula; range, mean, first values."""
    lines: list[str] = []
    widest = max(display_width(stage.name) for stage in trace.stages)
    for stage in trace.stages:
        shape = "[" + ",".join(map(str, stage.shape)) + "]"
        formula = (
            stage.formula.encode("ascii", "replace").decode() if style.is_ascii else stage.formula
        )
        line = f"{pad(stage.name, min(widest, 40))} {pad(shape, 12)} {formula}"
        lines += [truncate(line, style.width).rstrip(), values_line(trace, stage, style)]
    return lines


def values_line(trace: Trace, stage: Stage, style: ViewStyle) -> str:
    """Range, mean and first values of a stage, as many as fit."""
    if stage.stats is None or stage.name not in trace.arrays or not prod(stage.shape):
        return "    not kept: a text of this length is reduced"
    low, high, mean = (stage.stats[name] for name in ("min", "max", "mean"))
    line = f"    {number(low)} .. {number(high)}  mean {number(mean)}  first"
    for value in trace.arrays[stage.name].reshape(-1)[:12]:
        part = f" {number(float(value))}"
        if display_width(line + part) > style.width:
            break
        line += part
    return line


def number(value: float) -> str:
    """-2.31, 1203, 4.1e-05: at most four significant digits."""
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.2f}" if 0.01 <= abs(value) < 1e4 else f"{value:.1e}"
