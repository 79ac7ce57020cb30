"""`weft demo`: the main job from nothing to a model that can be used, on a task that is built in.

dates in 30 languages -> OUT/data -> recipes/dates.toml -> OUT -> scores, examples, a look inside
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from weft.cli.output import print_json, print_table, say
from weft.core.errors import DataError

if TYPE_CHECKING:
    from weft.engine.model import LoadedModel
    from weft.training.data.files import TrainingFiles
    from weft.training.loop import Progress
    from weft.training.recipe import Recipe

RECIPE = "dates.toml"
NUM_TRAIN, NUM_VALID, NUM_TEST = 60_000, 500, 2_000
MAX_TOKENS = 15
"""Tokens that an answer may have: an ISO date is 10 and an end."""
WRONG = 3
"""Wrong answers that are shown."""
SHOWN = "Sunday, August 16, 2026"
"""The date whose reading is shown; it is one of the test dates."""

Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="The model folder.")]
Seed = Annotated[int, typer.Option(min=0, help="Decides the data, the weights and their order.")]
Steps = Annotated[
    int | None, typer.Option(min=1, help="Updates of the weights; none: as the recipe says.")
]
Json = Annotated[bool, typer.Option("--json", help="End with one JSON object.")]


class Answer(NamedTuple):
    """A test date, and what the model made of it."""

    language: str
    written: str
    expected: str
    answered: str

    @property
    def is_right(self) -> bool:
        return self.answered == self.expected


def command(
    out: Out = Path("runs/demo"), seed: Seed = 1, steps: Steps = None, json: Json = False
) -> None:
    """Train a model that reads dates in 30 languages, in a few minutes, and show what it can do.

    \b
    Example:
      weft demo
      weft demo --out runs/second --seed 2
      weft demo --json

    Dates as people write them, generated from CLDR, become ISO dates. No test date is trained on.
    The same command again finds the model finished and shows it again.
    """
    begin = time.perf_counter()
    # before torch is imported. Slower on an idle machine, but with other work beside it a step took
    # 0.4-0.7 s in place of 1.4-1.8 (docs/log/2026-11-15-dates.md)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from weft.engine.load import load

    train_dates(out, seed, steps)
    model = load(out)
    answers = examine(model, out / "data")
    exact = sum(answer.is_right for answer in answers) / len(answers)
    seconds = round(time.perf_counter() - begin, 1)
    if json:
        print_json({"exact_match": exact, "seconds": seconds, "out": str(out)})
        return
    show_answers(answers)
    show_attention(model)
    print(f"{exact:.1%} of {len(answers):,} dates never seen in training are right ({seconds} s).")
    show_next(out)


def train_dates(out: Path, seed: int, steps: int | None) -> None:
    """Data and model in `out`; what is there already is kept."""
    from weft.training.data.files import TrainingFiles
    from weft.training.dates.files import write_dates
    from weft.training.dates.languages import LOCALES

    recipe, data = read_recipe(seed, steps), out / "data"
    say(f"{data}: dates in {len(LOCALES) - 1} languages, {NUM_TRAIN:,} to learn from")
    write_dates(data, NUM_TRAIN, NUM_VALID, NUM_TEST, seed)
    train, valid = (
        tuple(data / f"{part}.{side}" for side in ("src", "tgt")) for part in ("train", "valid")
    )
    learn(recipe, TrainingFiles("translate", train, valid), out)


def learn(recipe: Recipe, files: TrainingFiles, out: Path) -> None:
    """Train, or go on; asked to stop, leave with the signal's exit code."""
    from weft.checkpoint.weft_folder import SCORES_FILE
    from weft.cli.watching import watch_training
    from weft.core.device import choose_device
    from weft.training.run import run_training
    from weft.training.signals import StoppedBySignal

    is_done = (out / SCORES_FILE).is_file()
    say(f"{out}: {'trained already' if is_done else 'training'}")
    try:
        with nullcontext(ignore) if is_done else watch_training(recipe.train.steps) as watch:
            run_training(recipe, files, out, watch, device=choose_device())
    except StoppedBySignal as stopped:
        say(f"stopped and saved in {out}; the same command goes on from there")
        raise typer.Exit(stopped.exit_code) from None


def ignore(progress: Progress) -> None:
    """Watches a run that has nothing left to do."""


def read_recipe(seed: int, steps: int | None) -> Recipe:
    """recipes/dates.toml with the given seed and number of steps."""
    from weft.core.config import read_settings, with_overrides
    from weft.training.recipe import Recipe

    path = recipe_path()
    changes = {"train.seed": seed} | ({} if steps is None else {"train.steps": steps})
    return Recipe.from_dict(with_overrides(read_settings(path), changes, Recipe), str(path))


def recipe_path() -> Path:
    """The recipe inside the installed package, or beside the sources."""
    package = Path(__file__).resolve().parents[1]
    places = [package / "recipes" / RECIPE, package.parents[1] / "recipes" / RECIPE]
    found = next((path for path in places if path.is_file()), None)
    if found is None:
        raise DataError("the recipe of the demo is missing. Install Weft again.", places[-1])
    return found


def examine(model: LoadedModel, data: Path) -> list[Answer]:
    """The model's answers to the test dates."""
    from weft.text.corpus import read_lines

    languages, written, expected = (
        list(read_lines(data / f"test.{name}")) for name in ("lang", "src", "tgt")
    )
    answered = model.translate(written, max_tokens=MAX_TOKENS)
    rows = zip(languages, written, expected, answered, strict=True)
    return [Answer(*row) for row in rows]


def show_answers(answers: list[Answer]) -> None:
    """A table with a line for each language, and some of the wrong answers."""
    from weft.training.dates.languages import language_name

    tags = dict.fromkeys(answer.language for answer in answers)
    rows = [(language_name(tag), *language_row(answers, tag)) for tag in tags]
    columns = ["language", "a date of the test", "answer", "", "right"]
    print_table(columns, rows)
    wrong = [answer for answer in answers if not answer.is_right][:WRONG]
    if wrong:
        told = [answer[1:] for answer in wrong]
        print_table(["wrong, for example", "expected", "answer"], told)


def language_row(answers: list[Answer], tag: str) -> tuple[str, str, str, str]:
    """An example of a language with a word in it, and its share of right answers."""
    own = [answer for answer in answers if answer.language == tag]
    chosen = next((a for a in own if any(map(str.isalpha, a.written))), own[0])
    share = sum(answer.is_right for answer in own) / len(own)
    return chosen.written, chosen.answered, "ok" if chosen.is_right else "wrong", f"{share:.0%}"


def show_attention(model: LoadedModel) -> None:
    """What the model looks at while it writes one date."""
    from weft.look.attention_weights import cross_attention
    from weft.look.heatmap import heat_map
    from weft.look.terminal import is_ascii_only

    answer = model.translate([SHOWN], max_tokens=MAX_TOKENS)[0]
    seen = cross_attention(model.model, model.tokenizer, SHOWN, answer)
    layer, head = seen.sharpest()
    print(f"{SHOWN} -> {answer}: where layer {layer + 1}, head {head + 1} looks for each token")
    lines = heat_map(
        seen.weights_LHTS[layer, head],
        seen.target_tokens,
        seen.source_tokens,
        is_ascii=is_ascii_only(),
    )
    print("\n".join(lines), end="\n\n")


def show_next(out: Path) -> None:
    """Commands that work on the folder as it is now."""
    weft, folder = program(), shlex.quote(str(out))
    test = [shlex.quote(str(out / "data" / f"test.{side}")) for side in ("src", "tgt")]
    print("Next:")
    print(f"  echo '{SHOWN}' | {weft} translate {folder}")
    print(f"  echo '2026\u5e748\u670816\u65e5' | {weft} translate {folder} --beam 4 --json")
    print(f"  {weft} eval {folder} --pairs {' '.join(test)}")
    print(f"  echo '{SHOWN}' | {weft} tokenize {folder}")
    print(f"  {weft} info {shlex.quote(near(recipe_path()))}")


def program() -> str:
    """How this program is called, so that a pasted command finds it."""
    if shutil.which("weft"):
        return "weft"
    script = Path(sys.argv[0])
    if script.name == "weft":
        return shlex.quote(near(script))
    return f"{shlex.quote(near(Path(sys.executable)))} -m weft"


def near(path: Path) -> str:
    """A path as seen from here where it lies below, else whole."""
    is_below = path.is_relative_to(Path.cwd())
    return str(path.relative_to(Path.cwd()) if is_below else path)
