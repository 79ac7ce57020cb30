"""`weft translate`: lines in, lines out, in order; a chunk is answered before the next is read."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.generation_options import SamplingOptions
from weft.cli.option_groups import with_groups
from weft.cli.options import (
    BatchTokens,
    Cache,
    Device,
    File,
    Model,
    PrefixCache,
    engine_settings,
    ready_model,
)
from weft.cli.output import print_json, progress, say
from weft.core.errors import UsageError
from weft.sampling.params import SamplingKeywords, SamplingParams

if TYPE_CHECKING:
    from weft.engine.answers import Translation
    from weft.engine.config import EngineConfig
    from weft.engine.model import LoadedModel
    from weft.engine.team import Team

CHUNK = 1000
"""Lines that are read, sorted by length and answered together."""

Beam = Annotated[int, typer.Option(min=1, max=256, help="Hypotheses kept at each step; 1: greedy.")]
LengthPenalty = Annotated[
    float,
    typer.Option(min=0, max=10, help="Scores are divided by length to this power; 0: not at all."),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(min=1, help="Most tokens of a translation.", show_default="2 x source + 10"),
]
NBest = Annotated[
    int,
    typer.Option("--n-best", min=1, max=256, help="Translations of each line, with their scores."),
]
Workers = Annotated[
    int,
    typer.Option(
        min=1,
        max=256,
        help="Processes that translate at once; each has the model and a cache.",
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="One object a line: source, translation, score.")
]


class TranslateSampling(SamplingOptions):
    """Without penalties, which repeat less than a translation has to, and log-probabilities, which
    are the score of a translation."""

    excluded = frozenset(
        {"repetition_penalty", "presence_penalty", "frequency_penalty", "logprobs"}
    )


@with_groups
def command(
    model: Model,
    file: File = "-",
    beam: Beam = 1,
    length_penalty: LengthPenalty = 1.0,
    n_best: NBest = 1,
    max_tokens: MaxTokens = None,
    *,
    sampling: TranslateSampling,
    batch_tokens: BatchTokens = 4096,
    cache: Cache = 1.0,
    prefix_cache: PrefixCache = "radix",
    workers: Workers = 1,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Translate a file or standard input, line by line; empty lines stay empty.

    \b
    Example:
      echo "A man rides a bicycle." | weft translate runs/en-de
      weft translate runs/en-de test.en --beam 5 > test.de
      weft translate runs/en-de test.en --beam 5 --n-best 3
      weft translate runs/en-de test.en --temperature 1 --top-k 10 --seed 7
      weft translate runs/en-de test.en --beam 5 --json

    The score is the log probability divided by length ** length-penalty. Lines are answered as
    they come, in groups of 1000; those typed at a terminal, one by one. With --n-best above 1 a
    line of output is the number of a source, a score and a translation with tabs between, best
    first, and --json has them as n_best too. With a --temperature above 0 they are drawn. A small
    model translates long files faster with as many --workers as there are cores.
    """
    from weft.engine.load import check_model

    temperature = sampling.keywords["temperature"]
    check_search(beam, length_penalty, n_best, sampling)
    check_workers(workers, temperature)
    engine = engine_settings(cache, prefix_cache, batch_tokens)
    check_model(model, "translate", max_tokens)
    translator = ready_model(model, device, engine)
    translator.tokenizer.report.has_warned = True
    drawn: SamplingKeywords = sampling.keywords if temperature > 0 else {}
    with team_of(workers, model, device, engine) as team:
        search, first = (n_best, beam, length_penalty, max_tokens), 1
        for lines in line_groups(file):
            # nothing is printed inside: on a terminal the bar would take it to stderr
            with progress("translating", len(lines)) as step:
                found = translator.translate_best(lines, *search, step, team, **drawn)
            print_chunk(lines, found, first if n_best > 1 else None, json)
            first += len(lines)
    say_cut(translator)


def line_groups(file: str) -> Iterator[list[str]]:
    """What is answered together: CHUNK lines, or each by itself where a person types them."""
    from weft.text.corpus import read_lines

    is_typed = file == "-" and sys.stdin.isatty()
    return chunks(read_lines(file, allow_empty=file == "-"), 1 if is_typed else CHUNK)


def check_workers(workers: int, temperature: float) -> None:
    if workers > 1 and temperature > 0:
        raise UsageError(
            f"--workers is {workers} and --temperature {temperature:g}: drawing has one process. "
            "Use one of them."
        )


def team_of(
    workers: int, model: str, device: str, engine: EngineConfig
) -> AbstractContextManager[Team | None]:
    """The processes that translate; None where this one does it alone."""
    if workers == 1:
        return nullcontext()
    from weft.engine.team import Team

    return Team(model, workers, device, engine)


def check_search(beam: int, length_penalty: float, n_best: int, sampling: SamplingOptions) -> None:
    """Refuse what cannot be searched or drawn, before anything is loaded."""
    from weft.engine.beam import BeamConfig

    sampling.warn_without_effect()
    params = SamplingParams.from_dict(sampling.values)
    if not params.is_greedy:
        if beam > 1:
            raise UsageError(
                f"--beam is {beam} and --temperature {params.temperature:g}: a beam search "
                "draws nothing. Use one of them."
            )
    elif n_best > beam:
        raise UsageError(
            f"--n-best is {n_best} but --beam is {beam}: a search finds no more than it keeps. "
            f"Use --beam {n_best} or more."
        )
    BeamConfig(beam, length_penalty)


def chunks(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    """The lines in lists of `size`; the last may be shorter."""
    rest = iter(lines)
    while chunk := list(islice(rest, size)):
        yield chunk


def print_chunk(
    lines: list[str], found: list[list[Translation]], first: int | None, json: bool
) -> None:
    """`first`: the number of the first line, if each has several translations."""
    for place, (line, best) in enumerate(zip(lines, found, strict=True)):
        if json:
            print_json(translation_object(line, best, has_several=first is not None))
        elif first is None:
            print(one_line(best[0].text))
        else:
            for one in best:
                score = "-" if one.score is None else f"{one.score:.4f}"
                print(first + place, score, one_line(one.text), sep="\t")
    sys.stdout.flush()


def translation_object(
    source: str, best: list[Translation], has_several: bool = False
) -> dict[str, Any]:
    told = [{"translation": one.text, "score": one.score} for one in best]
    return {"source": source, **told[0], **({"n_best": told} if has_several else {})}


def one_line(text: str) -> str:
    """The text without line breaks, which a model may say: line n answers line n."""
    return re.sub(r"[\r\n]+", " ", text)


def say_cut(translator: LoadedModel) -> None:
    """Tell how many lines were too long for the model."""
    report = translator.tokenizer.report
    if report.cut_lines:
        say(report.summary())
