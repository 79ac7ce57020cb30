"""`weft train`: a recipe and text files -> a model folder. The same command again goes on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from weft.cli.output import print_json, say
from weft.core.errors import UsageError

if TYPE_CHECKING:
    from weft.training.data.files import Files
    from weft.training.settings import Recipe

MANY = ("--pairs", "--text", "--valid")

RecipeFile = Annotated[
    Path | None, typer.Argument(metavar="[RECIPE.toml]", help="Settings; none: the defaults.")
]
Pairs = Annotated[
    list[Path] | None,
    typer.Option("--pairs", metavar="SRC TGT", help="Two files, line by line; plain or gzip."),
]
Tsv = Annotated[Path | None, typer.Option("--tsv", metavar="FILE", help="Pairs in one TSV file.")]
Columns = Annotated[
    tuple[int, int], typer.Option(metavar="SRC TGT", help="Its columns, counted from 1.")
]
Text = Annotated[
    list[Path] | None, typer.Option("--text", metavar="FILE...", help="Plain text, for a decoder.")
]
Objective = Annotated[
    Literal["lm", "mlm"], typer.Option(help="mlm: learn an encoder by guessing hidden tokens.")
]
Valid = Annotated[
    list[Path] | None,
    typer.Option("--valid", metavar="FILE...", help="Validation files, in the same form."),
]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="The model folder.")]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="Change a setting: model.position.kind=rotary."
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")]
Json = Annotated[bool, typer.Option("--json", help="The scores as one JSON object.")]


def command(
    out: Out,
    recipe: RecipeFile = None,
    pairs: Pairs = None,
    tsv: Tsv = None,
    columns: Columns = (1, 2),
    text: Text = None,
    objective: Objective = "lm",
    valid: Valid = None,
    change: Changes = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Train a model on your own text; the same command again goes on where it stopped.

    \b
    Example:
      weft train --pairs train.en train.de --valid val.en val.de --out runs/en-de
      weft train recipes/tiny.toml --tsv pairs.tsv --columns 2 1 --out runs/zh-en
      weft train --text corpus.txt --out runs/lm --set model.attention.kind=gqa
      weft train --text corpus.txt --objective mlm --out runs/encoder

    The tokenizer is trained from the same files. DIR then holds everything that the model needs.
    """
    from weft.cli.watching import watch_training
    from weft.core.device import choose_device
    from weft.training.run import train
    from weft.training.signals import StoppedBySignal

    settings = read_recipe(recipe, change or [])
    files = choose_files(pairs, tsv, columns, text, objective, valid)
    try:
        with watch_training(settings.train.steps) as watch:
            scores = train(settings, files, out, watch, device=choose_device(device))
    except StoppedBySignal as stopped:
        say(f"stopped and saved in {out}; the same command goes on from there")
        raise typer.Exit(stopped.exit_code) from None
    if not is_first_process():
        return
    if json:
        print_json({**scores, "out": str(out)})
    else:
        say(f"{out}: {describe(scores)}")


def is_first_process() -> bool:
    """Of those that torchrun started, one talks."""
    return os.environ.get("RANK", "0") == "0"


def read_recipe(path: Path | None, changes: list[str]) -> Recipe:
    """The recipe with `--set` changes on top."""
    from weft.core.config import parse_override, read_settings, with_overrides
    from weft.training.settings import Recipe

    values = {} if path is None else read_settings(path)
    overrides = dict(parse_override(change) for change in changes)
    where = "settings" if path is None else str(path)
    return Recipe.from_dict(with_overrides(values, overrides, Recipe), where)


def choose_files(
    pairs: list[Path] | None,
    tsv: Path | None,
    columns: tuple[int, int],
    text: list[Path] | None,
    objective: Literal["lm", "mlm"],
    valid: list[Path] | None,
) -> Files:
    """The files of the run; exactly one of the three forms must be given."""
    from weft.training.data.files import Files

    given = [
        name for name, value in (("--pairs", pairs), ("--tsv", tsv), ("--text", text)) if value
    ]
    if len(given) != 1:
        told = " and ".join(given) or "none of --pairs, --tsv and --text"
        raise UsageError(f"{told} given: a run learns from exactly one of the three.")
    held_out = tuple(valid or ())
    if text:
        return Files(objective, tuple(text), held_out)
    if tsv:
        return Files("translate", (tsv,), held_out, columns)
    return Files("translate", tuple(pairs or ()), held_out)


def describe(scores: dict[str, Any]) -> str:
    """The scores in one line."""
    valid = ", ".join(f"{name} {value:.4g}" for name, value in scores.get("valid", {}).items())
    told = f"{scores['steps']:,} steps in {scores['seconds']:,} s"
    return f"{told}; on the validation data {valid}" if valid else f"{told}; no validation data"
