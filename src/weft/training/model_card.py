"""README.md of a finished run: what the model was trained on, how, and how good it is.

    scores       of the validation data, BLEU and chrF with sacreBLEU's signatures
    data         files with their SHA-256, and the data report (data/inspection.py)
    settings     those that differ from the defaults
    command      that started the run

It is for people; programs read run.json and scores.json, which it is made from.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from weft import __version__
from weft.checkpoint.run_files import KINDS, LANGUAGE_CODES, RECIPE_FILE, REQUESTED
from weft.text.languages import language_name
from weft.training.data.inspection import DataReport
from weft.training.delivery import describe_delivery
from weft.training.recipe import Recipe

TASKS = {
    "translate": "translation",
    "lm": "language modeling",
    "mlm": "masked language modeling",
}
USES = {"translate": "translate {0} input.txt", "lm": 'generate {0} "A text"', "mlm": "embed {0}"}


def model_card(
    out: Path, run: Mapping[str, Any], scores: Mapping[str, Any], num_weights: int
) -> str:
    """The Markdown text for the folder `out`, from the values of run.json and scores.json."""
    task = run["files"]["task"]
    parts = [
        [f"# {out.name}", "", introduction(run, num_weights), ""],
        ["```sh", f"weft {USES[task].format(out.name)}", "```", ""],
        ["## Scores", "", *score_lines(scores), ""],
        ["## Data", "", *data_lines(run), ""],
        ["## Training", "", *training_lines(run, scores), ""],
    ]
    return "\n".join(line for part in parts for line in part)


def introduction(run: Mapping[str, Any], num_weights: int) -> str:
    """What the model is, in one sentence."""
    task, codes = run["files"]["task"], run.get(LANGUAGE_CODES)
    names = f" from {language_name(codes[0])} to {language_name(codes[1])}" if codes else ""
    article = "An" if KINDS[task].startswith("e") else "A"
    return (
        f"{article} {KINDS[task]} Transformer for {TASKS[task]}{names} with {num_weights:,} "
        f"parameters, trained with Weft {__version__}."
    )


def score_lines(scores: Mapping[str, Any]) -> Iterator[str]:
    """A table of the validation scores."""
    values, signatures = scores.get("valid", {}), scores.get("signatures", {})
    if not values:
        yield "There was no validation data."
        return
    yield "On the validation data:"
    yield ""
    yield "| score | value | signature |"
    yield "| --- | --- | --- |"
    for name, value in values.items():
        yield f"| {name} | {value:.4g} | {cell(signatures.get(name, ''))} |"
    if signatures:
        lines = scores.get("translated_lines")
        yield ""
        yield f"Translations were scored on {lines} validation lines, decoded greedily."


def data_lines(run: Mapping[str, Any]) -> Iterator[str]:
    """The files of the run, and the report on them."""
    yield "| part | file | SHA-256 |"
    yield "| --- | --- | --- |"
    for part in ("train", "valid"):
        paths = run.get("paths", {}).get(part, [])
        for path, digest in zip(paths, run["files"][part], strict=True):
            yield f"| {part} | {cell(Path(path).name)} | {digest} |"
    if "data" in run:
        report = DataReport.from_dict(run["data"])
        yield ""
        yield f"{report.summary()}."
        yield from (f"- {warning}." for warning in report.warnings())


def training_lines(run: Mapping[str, Any], scores: Mapping[str, Any]) -> Iterator[str]:
    """Length of the run, its result, and the settings that differ from the defaults."""
    yield (
        f"{scores['steps']:,} steps, {scores['tokens']:,} target tokens, {scores['seconds']:,} s; "
        f"{describe_delivery(scores['delivered'])}."
    )
    if run.get("command"):
        codes = run.get(LANGUAGE_CODES)
        languages = f" --languages {' '.join(codes)}" if codes else ""
        yield from ("", "```sh", run["command"] + languages, "```")
    if REQUESTED in run:
        yield from ("", f"`weft train {RECIPE_FILE}` with the same files repeats it bit for bit.")
    yield from ("", "Settings that differ from the defaults:", "", "```toml")
    yield from changed_settings(run["recipe"])
    yield "```"
    changes = run.get("changes", [])
    if changes:
        yield from ("", "Settings that were changed during the run:", "")
    for change in changes:
        for name, (before, now) in change["settings"].items():
            yield f"- {name} from {before} to {now} at step {change['step']}"


def changed_settings(recipe: Mapping[str, Any]) -> Iterable[str]:
    """'model.width = 128' for each setting that is not the default."""
    defaults = dict(flatten(Recipe().to_dict()))
    for name, value in flatten(recipe):
        if name not in defaults or defaults[name] != value:
            yield f"{name} = {'none' if value is None else json.dumps(value, ensure_ascii=False)}"


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """{"a": {"b": 1}} -> ("a.b", 1)."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def cell(text: str) -> str:
    """Text for a cell of a Markdown table."""
    return text.replace("|", "\\|")
