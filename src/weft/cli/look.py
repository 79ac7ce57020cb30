"""`weft look`: one forward pass over a text, and what each token, head and layer does in it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.option_groups import OptionGroup, with_groups
from weft.cli.options import Device, Model, engine_settings, ready_model
from weft.cli.output import print_json, status
from weft.core.errors import UsageError, shown

if TYPE_CHECKING:
    from weft.engine.loaded_model import LoadedModel
    from weft.look.bars import ViewStyle
    from weft.look.trace import Trace
    from weft.look.trace_data import HeadName
    from weft.look.trace_views import Selection
    from weft.models.config import ModelConfig

WIDTH = 80
"""Columns of the output, unless the terminal has another width."""
MIN_WIDTH = 40
OTHER_FLAGS = (
    "more: --token WORD  --map LAYER.HEAD  --heads  --find WORD:WORD  --lens  --ablate "
    "LAYER.HEAD  --cross  --steps  --json  --svg FILE  --html FILE"
)

Head = Annotated[
    str | None,
    typer.Option("--map", metavar="HEAD", help="Map of one head: 2.3, cross.2.3, encoder.2.3."),
]
Heads = Annotated[bool, typer.Option("--heads", help="Table of all heads: entropy, max, distance.")]
Find = Annotated[
    str | None,
    typer.Option(metavar="WORD:WORD", help="All heads by the weight of one word on another."),
]
Ablate = Annotated[
    list[str] | None,
    typer.Option(metavar="HEAD", help="Logits without this head; may be repeated."),
]


@dataclass(frozen=True)
class LookViews(OptionGroup):
    """What is printed; without any: tokens, sharpest head, next tokens."""

    token: Annotated[
        str | None,
        typer.Option(metavar="WORD", help="The word that the views are about; WORD#2: the second."),
    ] = None
    map: Head = None
    heads: Heads = False
    find: Find = None
    cross: Annotated[
        bool, typer.Option("--cross", help="Alignment of the two texts by cross-attention.")
    ] = False
    lens: Annotated[
        bool, typer.Option("--lens", help="Logit lens: the next token after each layer.")
    ] = False
    ablate: Ablate = None
    steps: Annotated[
        bool, typer.Option("--steps", help="Every stage: name, shape, formula, range, values.")
    ] = False

    @property
    def is_overview(self) -> bool:
        return self == LookViews()


@dataclass(frozen=True)
class LookRequest:
    """The options after they were checked against the model."""

    views: LookViews
    map: HeadName | None = None
    ablated: tuple[HeadName, ...] = field(default=())
    find: tuple[str, str] | None = None
    window: tuple[int, int] | None = None


@with_groups
def command(
    model: Model,
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="Text to read; none or -: stdin.")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(metavar="TARGET", help="Target text of an encoder-decoder."),
    ] = None,
    *,
    views: LookViews,
    window: Annotated[
        str | None, typer.Option(metavar="A:B", help="Only tokens A to B-1 of the text.")
    ] = None,
    device: Device = "auto",
    ascii: Annotated[
        bool, typer.Option("--ascii", help="Draw with ASCII characters only.")
    ] = False,
    svg: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a picture of the head of --map to FILE."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the Walk page with this trace to FILE."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The trace as JSON, weft.trace/1.")] = False,
) -> None:
    """Show what a model does with a text: one forward pass, every number of it.

    \b
    Example:
      weft look smollm2 "The apple fell because it was ripe"
      weft look smollm2 "The apple fell because it was ripe" --find it:apple
      weft look smollm2 "The apple fell because it was ripe" --token it --map 2.3
      weft look smollm2 "The apple fell because it was ripe" --lens --ablate 2.3
      weft look smollm2 "The apple fell because it was ripe" --html trace.html
      weft look runs/en-de "A man rides a bicycle." --cross

    Layers, heads and positions count from 0. A bare 2.3 is layer 2, head 3 of the decoder, or of
    the only stack. Without --to an encoder-decoder reads its own translation as the target.
    Without options: tokens with the words they belong to, the sharpest head of the last token, the
    next tokens. The sharpest head has the largest weight on a token other than the first, special
    tokens and the token itself. An attention weight is not an explanation: --ablate shows what
    changes without a head.
    """
    request = checked_request(model, views, window, to)
    text = read_text(text)
    loaded = ready_model(model, device, engine_settings("1", "radix"))
    trace = record_trace(loaded, model, text, to, request)
    style = view_style(ascii)
    if json:
        print_json(trace.to_json())
    else:
        print("\n\n".join("\n".join(lines) for lines in sections(trace, request, style)))
    if svg is not None:
        write_svg(trace, request, svg)
    if html is not None:
        trace.to_html(html)
        status(f"Wrote {html}: open it in a browser.")


def checked_request(
    model: str, views: LookViews, window: str | None, to: str | None
) -> LookRequest:
    """The options, checked before weights are loaded."""
    from weft.checkpoint.description import describe
    from weft.look.trace_data import HeadName

    config = describe(model).config
    check_kind(config, views, to)
    return LookRequest(
        views,
        None if views.map is None else HeadName.parse(views.map, config),
        tuple(HeadName.parse(one, config) for one in views.ablate or ()),
        None if views.find is None else parse_find(views.find),
        None if window is None else parse_window(window),
    )


def check_kind(config: ModelConfig, views: LookViews, to: str | None) -> None:
    """Raise a UsageError for options that this kind of model does not have."""
    kind = config.kind
    if kind != "encoder-decoder":
        for name, is_set in {"--to": to is not None, "--cross": views.cross}.items():
            if is_set:
                raise UsageError(
                    f"{name} needs a model of kind encoder-decoder, but this model is of kind "
                    f"{kind}. Leave {name} out."
                )
    if kind == "encoder":
        for name, is_set in {"--lens": views.lens, "--ablate": bool(views.ablate)}.items():
            if is_set:
                raise UsageError(
                    f"{name} is about the next token, but this model is of kind encoder, which "
                    f"predicts none. Leave {name} out."
                )


def parse_find(text: str) -> tuple[str, str]:
    """The two words of --find; the first colon that has text on both sides divides them."""
    places = [i for i, char in enumerate(text) if char == ":" and 0 < i < len(text) - 1]
    if not places:
        raise UsageError(
            f"--find is {shown(text)}: it must be two words with a colon between them, such as "
            "it:apple."
        )
    return text[: places[0]], text[places[0] + 1 :]


def parse_window(text: str) -> tuple[int, int]:
    first, colon, last = text.partition(":")
    if not (colon and first.isascii() and first.isdigit() and last.isascii() and last.isdigit()):
        raise UsageError(
            f"--window is {shown(text)}: it must be two token positions with a colon between them, "
            "such as 0:64."
        )
    return int(first), int(last)


def read_text(text: str | None) -> str:
    """The text, or all of standard input without its last line break."""
    if text not in (None, "-"):
        return text or ""
    if sys.stdin.isatty():
        status("Type a text to look at; Ctrl-D ends it.")
    return sys.stdin.read().removesuffix("\n")


def record_trace(
    loaded: LoadedModel, name: str, text: str, to: str | None, request: LookRequest
) -> Trace:
    """The trace of the text; the target of an encoder-decoder is its own translation, unless it is
    set."""
    from weft.look.recorder import record

    if loaded.kind == "encoder-decoder" and to is None and text.strip():
        (to,) = loaded.translate([text])
        status(f"The target is the model's own translation, {shown(to)}. Use --to for another.")
    return record(
        loaded.model,
        loaded.tokenizer,
        text,
        to,
        ablate=list(map(str, request.ablated)),
        window=request.window,
        start=loaded.generation_config.start,
        name=name,
    )


def view_style(is_ascii: bool) -> ViewStyle:
    """As wide as the terminal, or 80 columns; ASCII also where the locale has no blocks."""
    from weft.look.bars import ViewStyle
    from weft.look.terminal import is_ascii_only

    width = shutil.get_terminal_size((WIDTH, 24)).columns if sys.stdout.isatty() else WIDTH
    return ViewStyle(max(MIN_WIDTH, width), is_ascii or is_ascii_only())


def sections(trace: Trace, request: LookRequest, style: ViewStyle) -> Iterator[list[str]]:
    """The views that were asked for, one after the other."""
    from weft.look import trace_views as look
    from weft.look.prediction_views import ablation_view, lens_view

    views = request.views
    if views.is_overview:
        yield [*look.overview(trace, style), "", *wrapped(OTHER_FLAGS, style.width)]
        return
    chosen = None if views.token is None else look.select(trace, views.token)
    if chosen is not None:
        yield [*look.tokens_view(trace, style), "", *token_section(trace, chosen, request, style)]
    if request.map is not None:
        yield look.head_view(trace, request.map, style)
    if views.heads:
        part = None if request.map is None else request.map.part
        yield look.heads_view(trace, style, part, chosen)
    if request.find is not None:
        yield look.find_view(trace.find(*request.find), style)
    if views.cross:
        is_cross = request.map is not None and request.map.part == "cross"
        yield look.cross_view(trace, style, request.map if is_cross else None)
    predicting = predicting_token(trace, chosen, views)
    if views.lens:
        yield lens_view(trace, style, predicting)
    if views.ablate:
        yield ablation_view(trace, style, -1 if predicting is None else predicting.tokens[-1])
    if views.steps:
        yield look.steps_view(trace, style)
    notes = [f"note: {note}" for note in trace.limits.notes]
    if trace.ablated and LookViews(ablate=views.ablate) != views:
        heads = ", ".join(map(str, trace.ablated))
        notes.append(f"note: all views are those of the model without {heads}")
    if notes:
        yield notes


def token_section(
    trace: Trace, chosen: Selection, request: LookRequest, style: ViewStyle
) -> list[str]:
    """What the token looks at, in the head of --map if that reads it, and what comes after it."""
    from weft.look.trace_views import next_view, token_view

    head, stack = request.map, trace.model.main_part
    has_row = head is not None and trace.side_of(head.part) == chosen.side
    lines = token_view(trace, chosen, style, head if has_row else None)
    if trace.candidates.get(stack) and trace.side_of(stack) == chosen.side:
        lines += ["", *next_view(trace, style, chosen.tokens[-1])]
    return lines


def predicting_token(trace: Trace, chosen: Selection | None, views: LookViews) -> Selection | None:
    """The selected token, if the stack with the LM head reads it."""
    if chosen is None or chosen.side == trace.side_of(trace.model.main_part):
        return chosen
    if views.lens or views.ablate:
        raise UsageError(
            f"--token is {shown(views.token)}, which is in the text: --lens and --ablate are about "
            "tokens of the target, which the decoder reads. Use a word of the target."
        )
    return None


def wrapped(text: str, width: int) -> list[str]:
    """The flags in lines that fit, divided where two spaces are."""
    from weft.look.bars import wrapped_cells

    return list(wrapped_cells(text.split("  "), width))


def write_svg(trace: Trace, request: LookRequest, path: Path) -> None:
    """--svg: the head of --map, or the sharpest head of the selected or last token."""
    from weft.checkpoint.atomic import write_output
    from weft.look.rankings import sharpest_head
    from weft.look.svg import HeadPicture, head_svg
    from weft.look.trace_views import head_arrays, parts_of_side, select, token_labels

    head = request.map
    if head is None:
        chosen = select(trace, request.views.token)
        part = parts_of_side(trace, chosen.side)[0]
        head = sharpest_head(trace, part, chosen.tokens[-1])
    weights_TS, mask_TS = head_arrays(trace, head)
    rows, columns = (token_labels(trace, trace.side_of(head.part, a)) for a in ("query", "key"))
    title = f"{trace.model.name}: {head.part} layer {head.layer} head {head.head}"
    picture = HeadPicture(title, weights_TS, rows, columns, mask_TS)
    write_output(path, head_svg(picture).encode())
    status(f"wrote {path}: {title}")
