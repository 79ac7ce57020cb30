"""`weft train`: a recipe and text files -> a model folder. Running it again resumes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from weft.cli.options import Device
from weft.cli.output import print_json, status

if TYPE_CHECKING:
    from weft.models.build import AnyModel
    from weft.text.tokenizer import Tokenizer
    from weft.training.loop import ScoreTranslations
    from weft.training.recipe import DataConfig, Recipe

MANY = ("--pairs", "--text", "--valid", "--languages")

RecipeFile = Annotated[
    Path | None, typer.Argument(metavar="[RECIPE.toml]", help="Settings; none: defaults.")
]
Pairs = Annotated[
    list[Path] | None,
    typer.Option("--pairs", metavar="SRC TGT", help="Two parallel files; plain or gzip."),
]
Tsv = Annotated[Path | None, typer.Option("--tsv", metavar="FILE", help="Pairs in one TSV file.")]
Columns = Annotated[
    tuple[int, int], typer.Option(metavar="SRC TGT", help="Columns of --tsv, from 1.")
]
Text = Annotated[
    list[Path] | None, typer.Option("--text", metavar="FILE...", help="Text files, for a decoder.")
]
Objective = Annotated[
    Literal["lm", "mlm"], typer.Option(help="mlm: masked language modeling, for an encoder.")
]
Valid = Annotated[
    list[Path] | None,
    typer.Option("--valid", metavar="FILE...", help="Validation files, in the same format."),
]
Languages = Annotated[
    list[str] | None,
    typer.Option(
        "--languages",
        metavar="SRC TGT",
        help="Language codes, which the server needs to offer translations.",
        show_default="suffixes of --pairs",
    ),
]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Model folder.")]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="Change a setting: model.position.kind=rotary."
    ),
]
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
    languages: Languages = None,
    change: Changes = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Train a model on your own text; running the same command again resumes it.

    \b
    Example:
      weft train --pairs train.en train.de --valid val.en val.de --out runs/en-de
      weft train recipes/tiny.toml --tsv pairs.tsv --columns 2 1 --out runs/zh-en
      weft train --text corpus.txt --out runs/lm --set model.attention.kind=gqa
      weft train --text corpus.txt --objective mlm --out runs/encoder

    The tokenizer is trained on the same files. DIR contains everything that the model needs.
    """
    from weft.cli.train_progress import watch_training
    from weft.core.device import choose_device
    from weft.training.run import run_training, training_files
    from weft.training.signals import StoppedBySignal

    settings = read_recipe(recipe, change or [])
    data = choose_data(settings, pairs, tsv, columns, text, objective, valid)
    # paths in a recipe are relative to the recipe, paths of arguments to the working directory
    base = recipe.parent if recipe is not None and data is settings.data else Path()
    if languages:
        data = data.model_copy(update={"languages": tuple(languages)})
    files = training_files(data, base)
    try:
        with watch_training(settings.train.steps) as watch:
            place = choose_device(device)
            scores = run_training(settings, files, out, watch, greedy_scorer, place, status)
    except StoppedBySignal as stopped:
        status(f"stopped and saved in {out}; run the same command again to resume")
        raise typer.Exit(stopped.exit_code) from None
    if not is_rank_zero():
        return
    if json:
        print_json({**scores, "out": str(out)})
    else:
        status(f"{out}: {describe(scores)}")


def is_rank_zero() -> bool:
    """Only the first of the processes of torchrun prints."""
    return os.environ.get("RANK", "0") == "0"


def read_recipe(path: Path | None, changes: list[str]) -> Recipe:
    """The recipe with `--set` changes on top."""
    from weft.core.config import parse_override, read_settings, with_overrides
    from weft.training.recipe import Recipe

    values = {} if path is None else read_settings(path)
    overrides = dict(parse_override(change) for change in changes)
    where = "settings" if path is None else str(path)
    return Recipe.from_dict(with_overrides(values, overrides, Recipe), where)


def choose_data(
    recipe: Recipe,
    pairs: list[Path] | None,
    tsv: Path | None,
    columns: tuple[int, int],
    text: list[Path] | None,
    objective: Literal["lm", "mlm"],
    valid: list[Path] | None,
) -> DataConfig:
    """The data files of the arguments; without any, those of the recipe."""
    from weft.training.recipe import DataConfig

    if not (pairs or tsv or text or valid):
        return recipe.data
    return DataConfig(
        pairs=tuple(map(str, pairs or ())),
        tsv=str(tsv or ""),
        columns=columns,
        text=tuple(map(str, text or ())),
        objective=objective,
        valid=tuple(map(str, valid or ())),
    )


def greedy_scorer(pairs: list[tuple[str, str]], tokenizer: Tokenizer) -> ScoreTranslations:
    """A function that translates the validation sources greedily and scores the translations.

    `training` and `engine` do not import each other; this command connects them."""
    from weft.checkpoint.weft_folder import Checkpoint
    from weft.engine.loaded_model import LoadedModel
    from weft.nn.packed_modules import unpack_model
    from weft.text.metrics import score

    sources, references = [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    def scores(model: AnyModel) -> dict[str, float]:
        was_training = model.training
        try:
            loaded = LoadedModel(Checkpoint(model, tokenizer, "translate"), is_threaded=False)
            translations = loaded.translate(sources)
        finally:
            # the engine packs the weights of the model in training
            unpack_model(model)
            model.train(was_training)
        result = score(translations, references)
        return {"bleu": result.bleu, "chrf": result.chrf, "exact_match": result.exact_match}

    return scores


def describe(scores: dict[str, Any]) -> str:
    """The scores in one line."""
    valid = ", ".join(f"{name} {value:.4g}" for name, value in scores.get("valid", {}).items())
    summary = f"{scores['steps']:,} steps in {scores['seconds']:,} s"
    return f"{summary}; validation: {valid}" if valid else f"{summary}; no validation data"
