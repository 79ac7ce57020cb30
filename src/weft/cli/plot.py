"""`weft plot`: the curves of training runs in the terminal or as a PNG."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Annotated

import typer

from weft.cli.curve_canvas import draw_curves
from weft.cli.output import print_json
from weft.cli.run_metrics import Curve, read_curves
from weft.core.errors import DataError, UsageError

Runs = Annotated[list[Path], typer.Argument(metavar="DIR", help="Folders of runs.")]
Metric = Annotated[
    list[str] | None,
    typer.Option(
        "--metric", metavar="NAME", help="Curve of metrics.jsonl.", show_default="loss valid_loss"
    ),
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Redraw until Ctrl-C.")]
Out = Annotated[Path | None, typer.Option(metavar="FILE.png", help="Write an image instead.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object per curve.")]
Interval = Annotated[float, typer.Option(min=0.1, help="Seconds between two drawings.")]

DEFAULT = ("loss", "valid_loss")
MANY = ("--metric",)


def command(
    runs: Runs,
    metric: Metric = None,
    follow: Follow = False,
    interval: Interval = 2.0,
    out: Out = None,
    json: Json = False,
) -> None:
    """Plot the losses and scores of one run or several, while they are trained or afterwards.

    \b
    Example:
      weft plot runs/en-de
      weft plot runs/en-de --follow
      weft plot runs/a runs/b --metric valid_loss --out curves.png
      weft plot runs/en-de --json

    With --json, each object has run, name, steps and values, and no curve is smoothed.
    """
    names = tuple(metric or DEFAULT)
    modes = {"--out": out is not None, "--follow": follow, "--json": json}
    chosen = [name for name, is_chosen in modes.items() if is_chosen]
    if len(chosen) > 1:
        raise UsageError(f"{chosen[0]} and {chosen[1]} cannot be combined. Leave one of them out.")
    if json:
        print_curves(runs, names)
        return
    curves = choose_curves(runs, names)
    if out is not None:
        write_image(curves, out)
    elif follow:
        follow_runs(runs, names, interval)
    else:
        print(draw(curves))


def choose_curves(runs: list[Path], names: tuple[str, ...]) -> list[Curve]:
    """The curves with these names of all runs; a DataError if there is none."""
    curves = []
    for run, curve in find_curves(runs, names):
        label = f"{run.name} {curve.name}" if len(runs) > 1 else curve.name
        shown = curve if curve.name.startswith("valid_") else curve.smoothed()
        curves.append(Curve(label, shown.steps, shown.values))
    return curves


def find_curves(runs: list[Path], names: tuple[str, ...]) -> list[tuple[Path, Curve]]:
    """The curves with these names as the runs recorded them; a DataError if there is none."""
    curves, known = list[tuple[Path, Curve]](), set[str]()
    for run in runs:
        of_run = read_curves(run)
        known |= of_run.keys()
        curves += [(run, of_run[name]) for name in names if name in of_run]
    if not curves:
        listed = f"It has {', '.join(sorted(known))}." if known else "It has no step yet."
        raise DataError(f"there is no curve {' or '.join(names)}. {listed}", runs[0])
    return curves


def print_curves(runs: list[Path], names: tuple[str, ...]) -> None:
    """--json: one object per curve."""
    for run, curve in find_curves(runs, names):
        print_json(
            {"run": str(run), "name": curve.name, "steps": curve.steps, "values": curve.values}
        )


def draw(curves: list[Curve]) -> str:
    """The curves as wide as the terminal."""
    from rich.console import Console

    from weft.look.terminal import is_ascii_only

    console = Console()
    height = max(8, min(24, console.height - 6))
    return draw_curves(curves, console.width, height, is_ascii_only())


def follow_runs(runs: list[Path], names: tuple[str, ...], interval: float) -> None:
    """Draw again and again on one place of the terminal, until it is interrupted."""
    from rich.live import Live
    from rich.text import Text

    def text() -> Text:
        try:
            return Text(draw(choose_curves(runs, names)))
        except DataError as error:  # no step yet
            return Text(str(error))

    with Live(text(), auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            live.update(text(), refresh=True)


def write_image(curves: list[Curve], path: Path) -> None:
    """A PNG, by matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError(
            "--out needs matplotlib, which is not installed. Install it with pip install "
            "weft[bench], or leave --out out to plot in the terminal."
        ) from None
    from weft.checkpoint.atomic import write_output

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for curve in curves:
        axes.plot(
            curve.steps, curve.values, label=curve.name, marker="." if len(curve.steps) < 40 else ""
        )
    axes.set_xlabel("step")
    axes.grid(alpha=0.3)
    axes.legend()
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=120)
    write_output(path, image.getvalue())
