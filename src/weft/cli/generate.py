"""`weft generate`: continue a prompt, streaming; or many prompts at once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.completion_json import completion_object
from weft.cli.generation_options import GenerationOptionGroup
from weft.cli.option_groups import with_groups
from weft.cli.options import (
    Device,
    Keep,
    MaxTokens,
    Model,
    check_logprobs,
    prefix_cache_file,
    ready_model,
)
from weft.cli.output import print_json, progress, status
from weft.cli.translate import CHUNK, chunks, one_line
from weft.core.errors import DataError, UsageError

if TYPE_CHECKING:
    from weft.engine.client import Completion
    from weft.engine.loaded_model import LoadedModel
    from weft.engine.request import GenerationRequest
    from weft.engine.request_builder import GenerationOptions


Encode = Callable[[str], list[int]]
"""A prompt -> its ids."""


Prompt = Annotated[
    str | None, typer.Argument(metavar="PROMPT", help="Text to continue; none or -: stdin.")
]
Prompts = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="One prompt per line; -: stdin. Output is in order."),
]
Template = Annotated[
    bool, typer.Option("--template", help="Each prompt is a message in the chat template.")
]
Number = Annotated[int, typer.Option("--n", min=1, max=256, help="Completions per prompt.")]
Watch = Annotated[
    bool, typer.Option("--watch", help="Show tokens, page pool and prefix tree, step by step.")
]
Json = Annotated[
    bool, typer.Option("--json", help="One object per completion: text, tokens, usage, ...")
]


@with_groups
def command(
    model: Model,
    prompt: Prompt = None,
    prompts: Prompts = None,
    template: Template = False,
    max_tokens: MaxTokens = None,
    n: Number = 1,
    *,
    generation: GenerationOptionGroup,
    keep: Keep = None,
    device: Device = "auto",
    watch: Watch = False,
    json: Json = False,
) -> None:
    """Continue a text; it is printed as it is generated.

    \b
    Example:
      weft generate smollm2 "The capital of France is" --max-tokens 10
      weft generate smollm2 "1, 2, 3," --stop "7" --json
      weft generate smollm2 "Once upon a time" --temperature 0.8 --n 3 --seed 7
      weft generate smollm2 "Today is" --regex "[0-9]{4}-[0-9]{2}-[0-9]{2}"
      weft generate smollm2 --prompts prompts.txt --max-tokens 20 > answers.txt
      weft generate smollm2 --prompts questions.txt --template > answers.txt
      weft generate smollm2 "$(cat long.txt) In short:" --keep long.cache
      weft generate smollm2 "Once upon a time" --watch

    With --n or --prompts each completion is one line, with line breaks as spaces; an empty prompt
    has an empty completion. With --json the text is unchanged, and each object has index, prompt,
    text, tokens, finish_reason (stop or length), stop_reason, logprobs if requested, and usage.

    --watch shows how it is generated: in a terminal until the end, or until q is pressed (space
    pauses, n runs one step); otherwise one line per token. Probabilities are those of the model,
    before temperature.
    """
    check_prompts(prompt, prompts)
    check_logprobs(generation.logprobs, json)
    from weft.engine.loaded_model import check_model

    options, engine = generation.options(max_tokens, n), generation.engine
    check_model(model, "generate", max_tokens)
    text = read_prompt(prompt) if prompts is None else ""
    watched = watched_prompts(text, prompts, n, json) if watch else []
    loaded = ready_model(model, device, engine, is_threaded=not watch)
    options = generation.with_defaults(options, loaded.generation_config)
    encode = prompt_encoder(loaded, template)
    with prefix_cache_file(loaded, keep):
        if watch:
            show_generation(loaded, f"weft generate {model}", watched, options, encode)
        elif prompts is not None:
            complete_file(loaded, prompts, options, json, encode)
        else:
            complete_one(loaded, text, options, json, encode)


def check_prompts(prompt: str | None, prompts: str | None) -> None:
    """Raise a UsageError for PROMPT together with --prompts."""
    if prompt is not None and prompts is not None:
        raise UsageError(
            f"PROMPT is {prompt!r} and --prompts is {prompts!r}: only one of them can be used. "
            "Choose one."
        )


def prompt_encoder(loaded: LoadedModel, has_template: bool) -> Encode:
    """Prompt -> ids: the text, or with --template a conversation of one message."""
    if not has_template:
        return loaded.prompt_ids
    assert loaded.request_builder.template, "a model without a chat template was accepted"
    return lambda text: loaded.chat_ids([{"role": "user", "content": text}])


def read_prompt(prompt: str | None) -> str:
    """The prompt, or all of standard input."""
    if prompt not in (None, "-"):
        return prompt or ""
    if sys.stdin.isatty():
        status("Type a text to continue; Ctrl-D ends it.")
    return sys.stdin.read()


def watched_prompts(text: str, file: str | None, n: int, json: bool) -> list[str]:
    """The prompts to watch: the text, or the lines of the file that are not empty."""
    from weft.cli.watch import check_watch
    from weft.text.corpus import read_lines

    lines = [text] if file is None else list(read_lines(file, allow_empty=file == "-"))
    prompts = lines if file is None else [line for line in lines if line.strip()]
    check_watch(json, prompts, n)
    return prompts


def show_generation(
    loaded: LoadedModel,
    title: str,
    prompts: list[str],
    options: GenerationOptions,
    encode: Encode,
) -> None:
    """--watch: show the generation, then print the texts."""
    from weft.cli.watch import watch

    log = watch(loaded, title, prompts, options, encode)
    for sample in log.samples:
        print(sample.text if len(log.samples) == 1 else one_line(sample.text))
    if any(sample.reason == "length" for sample in log.samples):
        warn_incomplete(options)


def complete_one(
    loaded: LoadedModel, text: str, options: GenerationOptions, json: bool, encode: Encode
) -> None:
    """One prompt: streamed, or with --n or --json printed when complete."""
    if options.n > 1 or json:
        request = loaded.request_builder.completion(encode(text), options)
        (completions,) = loaded.complete_all([request])
        print_completions(loaded, text, completions, options, json)
        return
    finish = None
    for output in loaded.stream(encode(text), options):
        print(output.text, end="", flush=True)
        finish = output.finish
    print()
    if finish is not None and finish.reason == "length":
        warn_incomplete(options)


def complete_file(
    loaded: LoadedModel, file: str, options: GenerationOptions, json: bool, encode: Encode
) -> None:
    """Many prompts, in chunks: a chunk runs as a whole and is printed in order."""
    from weft.engine.client import Completion
    from weft.text.corpus import read_lines

    first, empty = 1, [Completion(index) for index in range(options.n)]
    for lines in chunks(read_lines(file, allow_empty=file == "-"), CHUNK):
        requests = build_requests(loaded, file, first, lines, options, encode)
        # on a terminal the completions themselves show the progress
        with progress("generating", len(requests), is_shown=not sys.stdout.isatty()) as step:
            results = loaded.complete_all(requests, step)
            for line in lines:
                completions = next(results) if line.strip() else empty
                print_completions(loaded, line, completions, options, json)
        first += len(lines)


def build_requests(
    loaded: LoadedModel,
    file: str,
    first: int,
    lines: list[str],
    options: GenerationOptions,
    encode: Encode,
) -> list[GenerationRequest]:
    """A request for each nonempty line; a DataError names the line that cannot be served."""
    requests = []
    for number, line in enumerate(lines, first):
        if line.strip():
            try:
                requests.append(loaded.request_builder.completion(encode(line), options))
            except UsageError as error:
                raise DataError(str(error), file, number) from None
    return requests


def print_completions(
    loaded: LoadedModel,
    prompt: str,
    completions: list[Completion],
    options: GenerationOptions,
    json: bool,
) -> None:
    for completion in completions:
        if json:
            has_logprobs = options.sampling.logprobs is not None
            print_json(completion_object(completion, prompt, loaded.tokenizer, has_logprobs))
        else:
            print(one_line(completion.text))
    sys.stdout.flush()
    if any(one.finish and one.finish.reason == "length" for one in completions):
        warn_incomplete(options)


def warn_incomplete(options: GenerationOptions) -> None:
    """Print a warning for a text that ended before its grammar was complete."""
    if options.grammar is not None:
        status("stopped at --max-tokens before the grammar was complete. Raise --max-tokens.")
