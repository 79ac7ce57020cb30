"""`weft plot`: the curves of training runs in the terminal or as a PNG."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Annotated

import typer

from weft.cli.curve_canvas import draw_curves
from weft.cli.run_metrics import Curve, read_curves
from weft.core.errors import DataError, UsageError

Runs = Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of runs.")]
Metric = Annotated[
    list[str] | None,
    typer.Option(
        "--metric", metavar="NAME", help="Curve of metrics.jsonl.", show_default="loss valid_loss"
    ),
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Redraw until Ctrl-C.")]
Out = Annotated[Path | None, typer.Option(metavar="FILE.png", help="Write an image instead.")]
Interval = Annotated[float, typer.Option(min=0.1, help="Seconds between two drawings.")]

DEFAULT = ("loss", "valid_loss")
MANY = ("--metric",)


def command(
    runs: Runs,
    metric: Metric = None,
    follow: Follow = False,
    interval: Interval = 2.0,
    out: Out = None,
) -> None:
    """Plot the losses and scores of one run or several, while they are trained or afterwards.

    \b
    Example:
      weft plot runs/en-de
      weft plot runs/en-de --follow
      weft plot runs/a runs/b --metric valid_loss --out curves.png
    """
    names = tuple(metric or DEFAULT)
    if out is not None and follow:
        raise UsageError("--out writes one image, but --follow draws again. Leave one of them out.")
    curves = choose_curves(runs, names)
    if out is not None:
        write_image(curves, out)
    elif follow:
        follow_runs(runs, names, interval)
    else:
        print(draw(curves))


def choose_curves(runs: list[Path], names: tuple[str, ...]) -> list[Curve]:
    """The curves with these names of all runs; a DataError if there is none."""
    curves, known = list[Curve](), set[str]()
    for run in runs:
        of_run = read_curves(run)
        known |= of_run.keys()
        for name in names:
            if name in of_run:
                label = f"{run.name} {name}" if len(runs) > 1 else name
                curve = of_run[name] if name.startswith("valid_") else of_run[name].smoothed()
                curves.append(Curve(label, curve.steps, curve.values))
    if not curves:
        listed = f"It has {', '.join(sorted(known))}." if known else "It has no step yet."
        raise DataError(f"there is no curve {' or '.join(names)}. {listed}", runs[0])
    return curves


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
