"""`weft generate`: a prompt -> the text that follows, as it comes; or many prompts at once."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.answers import answer_object
from weft.cli.generation_options import GenerationOptionGroup
from weft.cli.keeping import Keep, kept
from weft.cli.option_groups import with_groups
from weft.cli.options import Device, MaxTokens, Model, ready_model, refuse_logprobs
from weft.cli.output import print_json, progress, say
from weft.cli.translate import CHUNK, chunks, one_line
from weft.core.errors import DataError, UsageError

if TYPE_CHECKING:
    from weft.engine.answers import Answer
    from weft.engine.model import LoadedModel
    from weft.engine.options import Options
    from weft.engine.writing import Writing


@with_groups
def command(
    model: Model,
    prompt: Annotated[
        str | None, typer.Argument(metavar="[PROMPT]", help="None or -: stdin, all of it.")
    ] = None,
    prompts: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Many prompts, one a line; -: stdin. Answered in order."),
    ] = None,
    max_tokens: MaxTokens = None,
    n: Annotated[int, typer.Option("--n", min=1, max=256, help="Answers to each prompt.")] = 1,
    *,
    generation: GenerationOptionGroup,
    keep: Keep = None,
    device: Device = "auto",
    json: Annotated[
        bool, typer.Option("--json", help="One object an answer: text, tokens, usage and more.")
    ] = False,
) -> None:
    """Continue a text; the words appear as they are written.

    \b
    Example:
      weft generate smollm2 "The capital of France is" --max-tokens 10
      weft generate smollm2 "1, 2, 3," --stop "7" --json
      weft generate smollm2 "Once upon a time" --temperature 0.8 --n 3 --seed 7
      weft generate smollm2 "Today is" --regex "[0-9]{4}-[0-9]{2}-[0-9]{2}"
      weft generate smollm2 --prompts prompts.txt --max-tokens 20 > answers.txt
      weft generate smollm2 "$(cat long.txt) In short:" --keep long.cache

    Several answers, and those to --prompts, are one a line, line breaks as spaces; an empty
    prompt has an empty answer. With --json the text is as it is, and each object has index,
    prompt, text, tokens, finish_reason (stop or length), stop_reason, logprobs if asked for, and
    usage.
    """
    refuse_mixture(prompt, prompts)
    refuse_logprobs(generation.logprobs, json)
    from weft.engine.load import check_model

    options, engine = generation.options(max_tokens, n), generation.engine
    check_model(model, "generate", max_tokens)
    text = read_prompt(prompt) if prompts is None else ""
    writer = ready_model(model, device, engine)
    with kept(writer, keep):
        if prompts is not None:
            answer_file(writer, prompts, options, json)
        else:
            answer_one(writer, text, options, json)


def refuse_mixture(prompt: str | None, prompts: str | None) -> None:
    if prompt is not None and prompts is not None:
        raise UsageError(
            f"PROMPT is {prompt!r} and --prompts is {prompts!r}: there is one place for prompts. "
            "Choose one."
        )


def read_prompt(prompt: str | None) -> str:
    """The prompt, or all of standard input."""
    if prompt not in (None, "-"):
        return prompt or ""
    if sys.stdin.isatty():
        say("Type a text to go on from; Ctrl-D ends it.")
    return sys.stdin.read()


def answer_one(writer: LoadedModel, text: str, options: Options, json: bool) -> None:
    """One prompt: its pieces as they come, or its answers when they are complete."""
    if options.n > 1 or json:
        writing = writer.requests.continued(writer.prompt_ids(text), options)
        (found,) = writer.answer_all([writing])
        print_answers(writer, text, found, options, json)
        return
    finish = None
    for update in writer.write(writer.prompt_ids(text), options):
        print(update.text, end="", flush=True)
        finish = update.finish
    print()
    if finish is not None and finish.reason == "length":
        say_cut(options)


def answer_file(writer: LoadedModel, file: str, options: Options, json: bool) -> None:
    """Many prompts, a chunk at a time; a chunk is worked on as a whole and answered in order."""
    from weft.engine.answers import Answer
    from weft.text.corpus import read_lines

    first, nothing = 1, [Answer(index) for index in range(options.n)]
    for lines in chunks(read_lines(file, allow_empty=file == "-"), CHUNK):
        writings = read_prompts(writer, file, first, lines, options)
        # on a terminal the answers themselves show how far it is
        with progress("writing", len(writings), is_shown=not sys.stdout.isatty()) as step:
            found = writer.answer_all(writings, step)
            for line in lines:
                answers = next(found) if line.strip() else nothing
                print_answers(writer, line, answers, options, json)
        first += len(lines)


def read_prompts(
    writer: LoadedModel, file: str, first: int, lines: list[str], options: Options
) -> list[Writing]:
    """A request for each line that is not empty; a DataError names the one that cannot be asked."""
    writings = []
    for number, line in enumerate(lines, first):
        if line.strip():
            try:
                writings.append(writer.requests.continued(writer.prompt_ids(line), options))
            except UsageError as error:
                raise DataError(str(error), file, number) from None
    return writings


def print_answers(
    writer: LoadedModel, prompt: str, found: list[Answer], options: Options, json: bool
) -> None:
    for answer in found:
        if json:
            has_logprobs = options.sampling.logprobs is not None
            print_json(answer_object(answer, prompt, writer.tokenizer, has_logprobs))
        else:
            print(one_line(answer.text))
    sys.stdout.flush()
    if any(answer.finish and answer.finish.reason == "length" for answer in found):
        say_cut(options)


def say_cut(options: Options) -> None:
    """A text that was cut may not keep to its grammar."""
    if options.grammar is not None:
        say("cut at its most tokens, so that the text may not be whole. Raise --max-tokens.")
