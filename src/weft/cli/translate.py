"""`weft translate`: lines in, lines out, in order; a chunk is printed before the next is read."""

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
from weft.cli.output import print_json, progress, status
from weft.core.errors import DataError, UsageError
from weft.sampling.params import SamplingKeywords, SamplingParams

if TYPE_CHECKING:
    from weft.engine.client import Translation
    from weft.engine.config import EngineConfig
    from weft.engine.loaded_model import LoadedModel
    from weft.engine.worker_pool import WorkerPool

CHUNK = 1000
"""Lines that are read, sorted by length and translated together."""

Beam = Annotated[int, typer.Option(min=1, max=256, help="Beam width; 1: greedy.")]
LengthPenalty = Annotated[
    float,
    typer.Option(min=0, max=10, help="Scores are divided by length ** this."),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        min=1, help="Maximum number of tokens of a translation.", show_default="2 x source + 10"
    ),
]
NBest = Annotated[
    int,
    typer.Option("--n-best", min=1, max=256, help="Translations per line, with scores."),
]
Workers = Annotated[
    int,
    typer.Option(
        min=1,
        max=256,
        help="Worker processes; each has its own model and KV cache.",
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="One object per line: source, translation, score.")
]


class TranslateSampling(SamplingOptions):
    """Without penalties, as a translation repeats what its source repeats, and without
    log-probabilities, from which its score is computed."""

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
    cache: Cache = "1",
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

    The score is the log-probability divided by length ** length-penalty. Lines are translated in
    chunks of 1000, or one by one when typed at a terminal. With --n-best above 1 an output line is
    the number of the source, a score and a translation, separated by tabs, best first; --json has
    them as n_best. With --temperature above 0 translations are sampled. A small model translates
    long files faster with as many --workers as there are cores.
    """
    from weft.engine.loaded_model import check_model

    temperature = sampling.keywords["temperature"]
    check_search(beam, length_penalty, n_best, sampling)
    check_workers(workers, temperature)
    engine = engine_settings(cache, prefix_cache, batch_tokens)
    check_model(model, "translate", max_tokens)
    translator = ready_model(model, device, engine)
    translator.tokenizer.report.has_warned = True
    keywords: SamplingKeywords = sampling.keywords if temperature > 0 else {}
    with worker_pool(workers, model, device, engine) as pool:
        search, first, num_failed = (n_best, beam, length_penalty, max_tokens), 1, 0
        for lines in line_groups(file):
            # print after the bar is closed: on a terminal it would redirect the output to stderr
            with progress("translating", len(lines)) as step:
                translations = translator.translate_best(lines, *search, step, pool, **keywords)
            print_chunk(lines, translations, first if n_best > 1 else None, json)
            warn_unknown_ids(translations, first, translator.tokenizer.target.vocab_size)
            num_failed += report_failed(translations, first)
            first += len(lines)
    warn_truncated(translator)
    if num_failed:
        raise DataError(
            f"{num_failed} of {first - 1} lines could not be translated: see above. The others "
            "were printed."
        )


def line_groups(file: str) -> Iterator[list[str]]:
    """Chunks of CHUNK lines; single lines if they are typed at a terminal."""
    from weft.text.corpus import read_lines

    is_terminal = file == "-" and sys.stdin.isatty()
    return chunks(read_lines(file, allow_empty=file == "-"), 1 if is_terminal else CHUNK)


def check_workers(workers: int, temperature: float) -> None:
    """Raise a UsageError for --workers together with sampling."""
    if workers > 1 and temperature > 0:
        raise UsageError(
            f"--workers is {workers} and --temperature {temperature:g}: workers only run beam "
            "search. Use one of them."
        )


def worker_pool(
    workers: int, model: str, device: str, engine: EngineConfig
) -> AbstractContextManager[WorkerPool | None]:
    """The worker pool; None if this process translates alone."""
    if workers == 1:
        return nullcontext()
    from weft.engine.worker_pool import WorkerPool

    return WorkerPool(model, workers, device, engine)


def check_search(beam: int, length_penalty: float, n_best: int, sampling: SamplingOptions) -> None:
    """Raise a UsageError for options that do not go together, before a model is loaded."""
    from weft.engine.beam_search import BeamConfig

    sampling.warn_without_effect()
    params = SamplingParams.from_dict(sampling.values)
    if not params.is_greedy:
        if beam > 1:
            raise UsageError(
                f"--beam is {beam} and --temperature {params.temperature:g}: beam search does not "
                "sample. Use one of them."
            )
    elif n_best > beam:
        raise UsageError(
            f"--n-best is {n_best} but --beam is {beam}: a beam search returns at most --beam "
            f"results. Use --beam {n_best} or more."
        )
    BeamConfig(beam, length_penalty)


def chunks(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    """The lines in lists of `size`; the last may be shorter."""
    remaining = iter(lines)
    while chunk := list(islice(remaining, size)):
        yield chunk


def print_chunk(
    lines: list[str], translations: list[list[Translation]], first: int | None, json: bool
) -> None:
    """`first`: number of the first line; None if each line has one translation."""
    for index, (line, best) in enumerate(zip(lines, translations, strict=True)):
        if json:
            print_json(translation_object(line, best, has_several=first is not None))
        elif first is None:
            print(one_line(best[0].text))
        else:
            for one in best:
                score = "-" if one.score is None else f"{one.score:.4f}"
                print(first + index, score, one_line(one.text), sep="\t")
    sys.stdout.flush()


def translation_object(
    source: str, best: list[Translation], has_several: bool = False
) -> dict[str, Any]:
    results = [{"translation": one.text, "score": one.score} for one in best]
    if best[0].error is not None:
        results[0]["error"] = best[0].error
    return {"source": source, **results[0], **({"n_best": results} if has_several else {})}


def one_line(text: str) -> str:
    """The text without line breaks, so that output line n belongs to input line n."""
    return re.sub(r"[\r\n]+", " ", text)


def report_failed(translations: list[list[Translation]], first: int) -> int:
    """Print why lines have no translation; returns how many. `first`: number of the first line."""
    errors = [(n, best[0].error) for n, best in enumerate(translations, first) if best[0].error]
    for number, error in errors:
        status(f"line {number}: {error} Its output is empty.")
    return len(errors)


def warn_unknown_ids(translations: list[list[Translation]], first: int, vocab_size: int) -> None:
    """Print which lines lack a part, because the model generated an id without a token. `first`:
    number of the first line."""
    for number, best in enumerate(translations, first):
        ids = [token_id for one in best for token_id in one.unknown_ids]
        if ids:
            status(
                f"line {number}: the model generated id {ids[0]}, but its tokenizer has the ids 0 "
                f"to {vocab_size - 1}. The translation was printed without it."
            )


def warn_truncated(loaded: LoadedModel) -> None:
    """Print how many lines were truncated because they were too long for the model."""
    report = loaded.tokenizer.report
    if report.cut_lines:
        status(report.summary())
