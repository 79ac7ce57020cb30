"""`weft demo`: trains a model on the built-in task, scores it, and shows how it works.

    dates in 30 languages -> OUT/data -> recipes/dates.toml -> OUT -> scores, examples, attention

The task itself is in weft/demo; this file has the options and the output.
"""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.options import parse_folder
from weft.cli.output import print_json, print_table, status

if TYPE_CHECKING:
    from weft.demo.demo import DateAnswer
    from weft.engine.loaded_model import LoadedModel

NUM_WRONG = 3
"""Wrong answers that are printed."""
EXAMPLE = "Sunday, August 16, 2026"
"""The date whose cross-attention is shown; it is a test date."""

Out = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="The model folder.", parser=parse_folder)
]
Seed = Annotated[
    int, typer.Option(min=0, help="Seed of the data, the initial weights and the batch order.")
]
Steps = Annotated[
    int | None, typer.Option(min=1, help="Number of training steps; default: the recipe's.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the results as one JSON object.")]


def command(
    out: Out = Path("runs/demo"), seed: Seed = 1, steps: Steps = None, json: Json = False
) -> None:
    """Train a model that reads dates in 30 languages, in a few minutes, and show what it can do.

    \b
    Example:
      weft demo
      weft demo --out runs/second --seed 2
      weft demo --json

    Converts written dates, generated from CLDR, to ISO dates. The test dates are not in the
    training data. Running it again skips training and shows the results.
    """
    begin = time.perf_counter()
    from weft.demo.demo import evaluate
    from weft.engine.loaded_model import load

    train_demo(out, seed, steps)
    model = load(out)
    answers = evaluate(model, out / "data")
    exact = sum(answer.is_correct for answer in answers) / len(answers)
    seconds = time.perf_counter() - begin
    if json:
        print_json({"exact_match": exact, "seconds": round(seconds, 3), "out": str(out)})
        return
    show_answers(answers)
    show_attention(model)
    share = f"{exact:.1%} of {len(answers):,} dates never seen in training are right"
    print(f"{share} ({seconds:.1f} s).")
    show_next(out)


def train_demo(out: Path, seed: int, steps: int | None) -> None:
    """Write the data and train the model, or resume; exit with the signal's code if stopped."""
    from weft.checkpoint.folder_files import is_finished
    from weft.cli.train_progress import watch_training
    from weft.core.device import choose_device
    from weft.demo import demo
    from weft.demo.dates import LOCALES
    from weft.training.run import run_training
    from weft.training.signals import StoppedBySignal, acknowledge_signals

    recipe, data = demo.demo_recipe(seed, steps), out / "data"
    status(f"{data}: dates in {len(LOCALES) - 1} languages, {demo.NUM_TRAIN:,} training pairs")
    demo.write_dates(data, demo.NUM_TRAIN, demo.NUM_VALID, demo.NUM_TEST, seed)
    is_done = is_finished(out)
    status(f"{out}: {'trained already' if is_done else 'training'}")
    try:
        files, place = demo.demo_files(data), choose_device()
        if is_done:
            run_training(recipe, files, out, device=place, report=status)
            return
        with watch_training(recipe.train.steps) as show, acknowledge_signals(show.note_stop):
            run_training(recipe, files, out, show, None, place, report=show.note, stage=show.stage)
    except StoppedBySignal as stopped:
        status(f"stopped and saved in {out}; run the same command again to resume")
        raise typer.Exit(stopped.exit_code) from None


def show_answers(answers: list[DateAnswer]) -> None:
    """Print a table with one row per language, and some wrong answers."""
    from weft.demo.dates import language_name

    tags = dict.fromkeys(answer.language for answer in answers)
    rows = [(language_name(tag), *language_row(answers, tag)) for tag in tags]
    columns = ["language", "a date of the test", "answer", "", "right"]
    print_table(columns, rows)
    wrong = [answer for answer in answers if not answer.is_correct][:NUM_WRONG]
    if wrong:
        columns = ["wrong, for example", "expected", "answer"]
        print_table(columns, [answer[1:] for answer in wrong])


def language_row(answers: list[DateAnswer], tag: str) -> tuple[str, str, str, str]:
    """An example of a language, if possible with a word in it, and the share of right answers."""
    answers = [answer for answer in answers if answer.language == tag]
    example = next((a for a in answers if any(map(str.isalpha, a.written))), answers[0])
    share = sum(answer.is_correct for answer in answers) / len(answers)
    return example.written, example.answer, "ok" if example.is_correct else "wrong", f"{share:.0%}"


def show_attention(model: LoadedModel) -> None:
    """Print the cross-attention of one head while it translates a date."""
    from weft.demo.demo import MAX_TOKENS
    from weft.look.attention_weights import cross_attention
    from weft.look.heatmap import heat_map
    from weft.look.terminal import is_ascii_only

    answer = model.translate([EXAMPLE], max_tokens=MAX_TOKENS)[0]
    attention = cross_attention(model.model, model.tokenizer, EXAMPLE, answer)
    layer, head = attention.sharpest()
    print(f"{EXAMPLE} -> {answer}: where layer {layer + 1}, head {head + 1} looks for each token")
    lines = heat_map(
        attention.weights_LHTS[layer, head],
        attention.target_tokens,
        attention.source_tokens,
        is_ascii=is_ascii_only(),
    )
    print("\n".join(lines), end="\n\n")


def show_next(out: Path) -> None:
    """Print commands to try next on the folder."""
    from weft.demo.demo import recipe_path

    weft, folder = program(), shlex.quote(str(out))
    test = [shlex.quote(str(out / "data" / f"test.{side}")) for side in ("src", "tgt")]
    print("Next:")
    print(f"  echo '{EXAMPLE}' | {weft} translate {folder}")
    print(f"  echo '2026\u5e748\u670816\u65e5' | {weft} translate {folder} --beam 4 --json")
    print(f"  {weft} eval {folder} --pairs {' '.join(test)}")
    print(f"  echo '{EXAMPLE}' | {weft} tokenize {folder}")
    print(f"  {weft} info {shlex.quote(relative_path(recipe_path()))}")


def program() -> str:
    """The name by which a shell finds this program."""
    if shutil.which("weft"):
        return "weft"
    script = Path(sys.argv[0])
    if script.name == "weft":
        return shlex.quote(relative_path(script))
    return f"{shlex.quote(relative_path(Path(sys.executable)))} -m weft"


def relative_path(path: Path) -> str:
    """A path relative to the working directory if it is below it, else as it is."""
    is_below = path.is_relative_to(Path.cwd())
    return str(path.relative_to(Path.cwd()) if is_below else path)
