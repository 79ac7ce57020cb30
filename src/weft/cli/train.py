"""`weft train`: a recipe and text files -> a model folder. Running it again resumes."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeGuard

import typer

from weft.cli.options import Device, parse_folder
from weft.cli.output import print_json, print_table, progress, status
from weft.cli.recipe_names import find_recipe
from weft.core.errors import UsageError
from weft.text.languages import language_pair

if TYPE_CHECKING:
    import torch

    from weft.models.build import AnyModel
    from weft.text.tokenizer import Tokenizer
    from weft.training.data.files import TrainingFiles
    from weft.training.recipe import DataConfig, Recipe
    from weft.training.run_plan import Invocation, Tuning

MANY = ("--pairs", "--text", "--valid", "--languages")

RecipeFile = Annotated[
    Path | None, typer.Argument(metavar="RECIPE", help="TOML file, or name; none: defaults.")
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
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="DIR", help="Model folder.", show_default=False, parser=parse_folder
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="Change a setting: model.position.kind=rotary."
    ),
]
Time = Annotated[
    str | None,
    typer.Option(
        "--time",
        metavar="TIME",
        help="Time of the whole run, such as 10m or 1h30m; at least 2m.",
        show_default="until patience, at most about 60m without a recipe",
    ),
]
Check = Annotated[
    bool, typer.Option("--check", help="Report what is in the files, and train nothing.")
]
Json = Annotated[bool, typer.Option("--json", help="The scores as one JSON object.")]


def command(
    recipe: RecipeFile = None,
    out: Out = None,
    pairs: Pairs = None,
    tsv: Tsv = None,
    columns: Columns = (1, 2),
    text: Text = None,
    objective: Objective = "lm",
    valid: Valid = None,
    languages: Languages = None,
    change: Changes = None,
    time: Time = None,
    device: Device = "auto",
    check: Check = False,
    json: Json = False,
) -> None:
    """Train a model on your own text; running the same command again resumes it.

    \b
    Example:
      weft train --pairs train.en train.de --valid val.en val.de --out runs/en-de
      weft train --pairs train.en train.de --time 10m --out runs/en-de
      weft train recipes/tiny.toml --tsv pairs.tsv --columns 2 1 --out runs/zh-en
      weft train --text corpus.txt --out runs/lm --set model.attention.kind=gqa
      weft train --text corpus.txt --objective mlm --out runs/encoder
      weft train --pairs train.en train.de --check
      weft train --out runs/en-de
      weft train --out runs/en-de --set train.steps=8000

    Without a recipe, the size of the model follows from the corpus, and the number of steps from a
    probe of 10 seconds. --time plans the steps of any recipe so that the whole run takes that long.
    recipe.json in DIR then has all settings, and repeats the run bit for bit.

    The last two resume a run. Steps, the end of the schedule, evaluation, saving, patience and
    averaging may change; run.json records them with their step. Steps end a --time, and a longer
    --time lets the run go on. The tokenizer is trained on the same files. DIR contains everything
    that the model needs, and is a model at any time: DIR@last, DIR@best and DIR@400 are those of
    its checkpoints.
    """
    from weft.core.device import choose_device
    from weft.training.run_plan import Invocation

    began, overrides = monotonic(), parse_changes(change or [], time)
    given = choose_data(pairs, tsv, columns, text, objective, valid)
    settings, files, tuning = choose_run(recipe, given, languages, overrides, out)
    if check:
        is_planned = tuning is not None or settings.train.minutes is not None
        check_data(settings, files, is_planned, json)
        return
    if out is None:
        raise UsageError("--out is missing: name the folder of the run, such as --out runs/en-de.")
    chosen = command_line(recipe, given, change or [], time, out)
    invocation = Invocation(chosen, tuning, began)
    scores = train_shown(settings, files, out, choose_device(device), invocation)
    if is_rank_zero():
        print_scores(scores, out, json)


def choose_run(
    recipe: Path | None,
    given: DataConfig | None,
    languages: list[str] | None,
    overrides: Mapping[str, Any],
    out: Path | None,
) -> tuple[Recipe, TrainingFiles, Tuning | None]:
    """Recipe and files of a run, and how it is planned if both follow from the files."""
    if recipe is None and not is_run(out):
        if given is None:
            where = f"{out} holds no run to resume, and no" if out else "no"
            raise UsageError(
                f"{where} files are given: a run needs --pairs SRC TGT, --tsv FILE or --text FILE."
            )
        files = choose_files(given, None, False, languages, out)
        settings, tuning = recipe_of_corpus(files, overrides)
        return settings, files, tuning
    settings = read_recipe(recipe, overrides, out)
    files = choose_files(given or settings.data, recipe, given is None, languages, out)
    return settings, files, None


def train_shown(
    settings: Recipe, files: TrainingFiles, out: Path, device: torch.device, invocation: Invocation
) -> dict[str, Any]:
    """Train with a progress display; exit with the signal's code if a signal stops the run."""
    from weft.cli.train_progress import watch_training
    from weft.training.run import run_training
    from weft.training.signals import StoppedBySignal, acknowledge_signals

    resumes = f"`weft train --out {shlex.quote(str(out))}` resumes"
    try:
        with (
            watch_training(settings.train.steps) as display,
            acknowledge_signals(display.note_stop),
        ):
            return run_training(
                settings,
                files,
                out,
                display,
                GreedyScorer,
                device,
                display.note,
                display.stage,
                invocation,
            )
    except StoppedBySignal as stopped:
        status(f"stopped and saved; {resumes}")
        raise typer.Exit(stopped.exit_code) from None
    except KeyboardInterrupt:
        # after the last step too, while the weights to deliver are chosen and scored
        is_begun = has_checkpoint(out)
        status(f"stopped; {resumes}" if is_begun else "stopped before the first step")
        raise


def has_checkpoint(out: Path) -> bool:
    from weft.checkpoint.run_files import CHECKPOINTS, checkpoint_steps

    return bool(checkpoint_steps(out / CHECKPOINTS))


def print_scores(scores: dict[str, Any], out: Path, is_json: bool) -> None:
    """The scores of a finished run."""
    from weft.training.delivery import describe_delivery

    if is_json:
        print_json({**scores, "out": str(out)})
        return
    status(f"{out}: {describe(scores)}")
    if "delivered" in scores:
        status(f"{out}: {describe_delivery(scores['delivered'])}")


def check_data(settings: Recipe, files: TrainingFiles, is_planned: bool, is_json: bool) -> None:
    """Print the data report and what would be trained; a DataError if too many pairs would be
    skipped."""
    from weft.training.data.inspection import inspect_files
    from weft.training.default_recipe import describe_choice

    with progress("inspecting the files") as step:
        lines = 0

        def count(number: int) -> None:
            nonlocal lines
            step(number - lines)
            lines = number

        report = inspect_files(files, count)
    warnings = [*report.warnings(), *settings.contradictions()]
    if is_json:
        recipe = settings.to_dict()
        print_json({**report.to_dict(), "warnings": warnings, "recipe": recipe})
    else:
        print_table(["", report.unit], list(report.to_dict().items()))
        status(f"would train: {describe_choice(settings, is_planned)}")
    for warning in warnings:
        status(f"warning: {warning}.")
    report.check(settings.train.skip_limit)


def command_line(
    recipe: Path | None,
    data: DataConfig | None,
    changes: list[str],
    time: str | None,
    out: Path,
) -> str:
    """The command for the model card, which adds the languages."""
    words = ["weft", "train", *([str(recipe)] if recipe else [])]
    data = data or empty_data()
    words += ["--pairs", *data.pairs] if data.pairs else []
    words += ["--tsv", data.tsv, "--columns", *map(str, data.columns)] if data.tsv else []
    words += ["--text", *data.text] if data.text else []
    words += ["--objective", data.objective] if data.objective != "lm" else []
    words += ["--valid", *data.valid] if data.valid else []
    words += [part for change in changes for part in ("--set", change)]
    words += ["--time", time] if time else []
    return shlex.join([*words, "--out", str(out)])


def is_rank_zero() -> bool:
    """Only the first of the processes of torchrun prints."""
    return os.environ.get("RANK", "0") == "0"


def parse_changes(changes: list[str], time: str | None = None) -> dict[str, Any]:
    """The values of `--set` and of `--time` by name."""
    from weft.core.config import parse_override

    overrides = dict(parse_override(change) for change in changes)
    if time is not None:
        overrides["train.minutes"] = parse_minutes(time)
    minutes = overrides.get("train.minutes")
    if minutes is not None and "train.steps" in overrides:
        given = f"--time is {time}" if time is not None else f"train.minutes is {minutes}"
        raise UsageError(
            f"{given} but --set gives train.steps, which a time plans. Use one of the two."
        )
    return overrides


def parse_minutes(time: str) -> float:
    """Minutes of '90s', '10m' or '1h30m'."""
    from weft.training.time_budget import MIN_MINUTES

    match = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", time.strip())
    if match is None or not any(match.groups()):
        raise UsageError(f"--time is {time!r}: it must be a time such as 10m, 90m or 1h30m.")
    hours, minutes, seconds = (int(group or 0) for group in match.groups())
    total = 60 * hours + minutes + seconds / 60
    if total < MIN_MINUTES:
        raise UsageError(
            f"--time is {time}: reading the files, a probe and the final scores leave no time to "
            f"learn. Use at least {MIN_MINUTES:g}m, or --set train.steps for a number of steps."
        )
    return total


def recipe_of_corpus(
    files: TrainingFiles, overrides: Mapping[str, Any]
) -> tuple[Recipe, Tuning | None]:
    """The recipe for some files, with the values of `--set` on top, and its plan after a probe,
    which a given number of steps does not need."""
    from weft.core.config import with_overrides
    from weft.training.default_recipe import (
        MAX_EVALUATIONS,
        corpus_size,
        default_recipe,
        lengths_of,
        tune_default,
    )
    from weft.training.recipe import Recipe

    values = default_recipe(corpus_size(files), files, overrides.get("train.minutes"))
    recipe = Recipe.from_dict(with_overrides(values, overrides, Recipe), "settings")
    if "train.steps" not in overrides:
        return recipe, partial(tune_default, fixed=frozenset(overrides))
    lengths = lengths_of(recipe.train.steps, MAX_EVALUATIONS)
    return recipe.with_changes({**lengths, **overrides}), None


def read_recipe(path: Path | None, overrides: Mapping[str, Any], out: Path | None = None) -> Recipe:
    """The recipe of a file, or of the run to resume, with the values of `--set` on top."""
    from weft.core.config import read_settings, with_overrides
    from weft.training.recipe import Recipe
    from weft.training.run_record import stored_recipe

    if path is not None:
        values = read_settings(find_recipe(path))
    else:
        assert out is not None, "only a run is resumed without a recipe"
        values = stored_recipe(out).to_dict()
        if "train.steps" in overrides:
            overrides = {"train.minutes": None, **overrides}  # steps that are given end a time
    where = "settings" if path is None else f"recipe {path}"
    return Recipe.from_dict(with_overrides(values, overrides, Recipe), where)


def is_run(out: Path | None) -> TypeGuard[Path]:
    """Whether a folder holds a run, which is resumed."""
    from weft.checkpoint.folder_files import RUN_FILE

    return out is not None and (out / RUN_FILE).is_file()


def choose_files(
    data: DataConfig,
    recipe: Path | None,
    is_of_recipe: bool,
    languages: list[str] | None,
    out: Path | None,
) -> TrainingFiles:
    """The files of a run: those of the arguments, of the recipe, or of the run to resume. Paths in
    a recipe are relative to the recipe, paths of arguments to the working directory."""
    from weft.training.run import training_files
    from weft.training.run_record import stored_files

    if is_run(out) and not (data.pairs or data.tsv or data.text):
        if data.valid:
            raise UsageError(
                "--valid is given without --pairs, --tsv or --text. Name all files of the run, or "
                "none of them to resume it."
            )
        files = stored_files(out)
        if languages and files.task != "translate":
            raise UsageError("--languages is given, but text files train no translation model.")
        return replace(files, languages=language_pair(languages)) if languages else files
    base = find_recipe(recipe).parent if recipe is not None and is_of_recipe else Path()
    if languages:
        data = data.model_copy(update={"languages": tuple(languages)})
    return training_files(data, base)


def choose_data(
    pairs: list[Path] | None,
    tsv: Path | None,
    columns: tuple[int, int],
    text: list[Path] | None,
    objective: Literal["lm", "mlm"],
    valid: list[Path] | None,
) -> DataConfig | None:
    """The data files of the arguments; None: there are none."""
    from weft.training.recipe import DataConfig

    if not (pairs or tsv or text or valid):
        return None
    return DataConfig(
        pairs=tuple(map(str, pairs or ())),
        tsv=str(tsv or ""),
        columns=columns,
        text=tuple(map(str, text or ())),
        objective=objective,
        valid=tuple(map(str, valid or ())),
    )


def empty_data() -> DataConfig:
    from weft.training.recipe import DataConfig

    return DataConfig()


class GreedyScorer:
    """Translates the validation sources greedily and scores the translations.

    `training` and `engine` do not import each other; this command connects them."""

    def __init__(self, pairs: list[tuple[str, str]], tokenizer: Tokenizer) -> None:
        self.sources = [source for source, _ in pairs]
        self.references = [reference for _, reference in pairs]
        self.tokenizer = tokenizer
        self.signatures: dict[str, str] = {}
        """sacreBLEU's, of the last scores."""

    def __call__(self, model: AnyModel) -> dict[str, float]:
        from weft.checkpoint.weft_folder import Checkpoint
        from weft.engine.loaded_model import LoadedModel
        from weft.nn.packed_modules import unpack_model
        from weft.text.metrics import score

        was_training = model.training
        try:
            checkpoint = Checkpoint(model, self.tokenizer, "translate")
            translations = LoadedModel(checkpoint, is_threaded=False).translate(self.sources)
        finally:
            # the engine packs the weights of the model in training
            unpack_model(model)
            model.train(was_training)
        result = score(translations, self.references)
        self.signatures = {"bleu": result.signature, "chrf": result.chrf_signature}
        return {"bleu": result.bleu, "chrf": result.chrf, "exact_match": result.exact_match}


def describe(scores: dict[str, Any]) -> str:
    """The scores in one line."""
    valid = ", ".join(f"{name} {value:.4g}" for name, value in scores.get("valid", {}).items())
    summary = f"{scores['steps']:,} steps in {scores['seconds']:,} s"
    return f"{summary}; validation: {valid}" if valid else f"{summary}; no validation data"
