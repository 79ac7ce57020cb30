"""`weft translate`: lines in, lines out, in order; a chunk is answered before the next is read."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.output import print_json, progress, say

if TYPE_CHECKING:
    from weft.engine.model import LoadedModel, Translation

CHUNK = 1000
"""Lines that are read, sorted by length and answered together; 1 where a person types them."""

Model = Annotated[str, typer.Argument(metavar="MODEL", help="A Weft model folder.")]
File = Annotated[str, typer.Argument(metavar="[FILE]", help="Plain or gzip; none or -: stdin.")]
Beam = Annotated[int, typer.Option(min=1, help="Hypotheses kept at each step; 1: greedy.")]
LengthPenalty = Annotated[
    float, typer.Option(min=0, help="Scores are divided by length to this power; 0: not at all.")
]
MaxTokens = Annotated[
    int | None,
    typer.Option(min=1, help="Most tokens of a translation.", show_default="2 x source + 10"),
]
BatchTokens = Annotated[int, typer.Option(min=1, help="Tokens that one step computes.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")]
Json = Annotated[
    bool, typer.Option("--json", help="One object a line: source, translation, score.")
]


def command(
    model: Model,
    file: File = "-",
    beam: Beam = 1,
    length_penalty: LengthPenalty = 1.0,
    max_tokens: MaxTokens = None,
    batch_tokens: BatchTokens = 4096,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Translate a file or standard input, line by line; empty lines stay empty.

    \b
    Example:
      echo "A man rides a bicycle." | weft translate runs/en-de
      weft translate runs/en-de test.en --beam 5 > test.de
      weft translate runs/en-de test.en --beam 5 --json

    The score is the log probability divided by length ** length-penalty. Lines are answered as
    they come, in groups of 1000; those typed at a terminal, one by one.
    """
    from weft.engine.load import load
    from weft.engine.settings import EngineConfig
    from weft.text.corpus import read_lines

    translator = load(model, device, engine=EngineConfig.of_batches(batch_tokens))
    translator.tokenizer.report.was_said = True
    is_typed = file == "-" and sys.stdin.isatty()
    for lines in chunks(read_lines(file, allow_empty=file == "-"), 1 if is_typed else CHUNK):
        # nothing is printed inside: on a terminal the bar would take it to stderr
        with progress("translating", len(lines)) as step:
            found = translator.translate_scored(lines, beam, length_penalty, max_tokens, step)
        print_chunk(lines, found, json)
    say_cut(translator)


def chunks(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    """The lines in lists of `size`; the last may be shorter."""
    rest = iter(lines)
    while chunk := list(islice(rest, size)):
        yield chunk


def print_chunk(lines: list[str], found: list[Translation], json: bool) -> None:
    for line, one in zip(lines, found, strict=True):
        if json:
            print_json({"source": line, "translation": one.text, "score": one.score})
        else:
            print(one_line(one.text))
    sys.stdout.flush()


def one_line(text: str) -> str:
    """The text without line breaks, which a model may say: line n answers line n."""
    return re.sub(r"[\r\n]+", " ", text)


def say_cut(translator: LoadedModel) -> None:
    """Tell how many lines were too long for the model."""
    report = translator.tokenizer.report
    if report.cut_lines:
        say(report.summary())
