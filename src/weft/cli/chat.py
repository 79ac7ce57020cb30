"""`weft chat`: a conversation with the model's chat template, line by line."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.completion_json import finish_reason, logprob_list
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
from weft.cli.output import print_json, status

if TYPE_CHECKING:
    from weft.engine.client import Completion
    from weft.engine.loaded_model import LoadedModel
    from weft.engine.request_builder import GenerationOptions


@with_groups
def command(
    model: Model,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    max_tokens: MaxTokens = None,
    *,
    generation: GenerationOptionGroup,
    keep: Keep = None,
    device: Device = "auto",
    json: Annotated[
        bool, typer.Option("--json", help="One object per turn: role, content, finish_reason.")
    ] = False,
) -> None:
    """Chat with a model. Each line is one message; an empty line or the end of input ends the chat.

    \b
    Example:
      weft chat smollm2
      echo "What is the capital of France?" | weft chat smollm2
      weft chat smollm2 --system "Answer in one word." --temperature 0.7 --top-p 0.9
    """
    check_logprobs(generation.logprobs, json)
    from weft.engine.loaded_model import check_model

    options, engine = generation.options(max_tokens), generation.engine
    check_model(model, "chat", max_tokens)
    loaded = ready_model(model, device, engine)
    options = generation.with_defaults(options, loaded.generation_config)
    assert loaded.request_builder.template, "a model without a chat template was accepted"
    messages = [] if system is None else [{"role": "system", "content": system}]
    with prefix_cache_file(loaded, keep):
        converse(loaded, messages, options, json)


def converse(
    loaded: LoadedModel, messages: list[dict[str, str]], options: GenerationOptions, json: bool
) -> None:
    """Read and answer turns until an empty line; `messages` is extended."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        status("Type a line; an empty one ends the conversation.")
    while question := read_turn(is_terminal):
        messages.append({"role": "user", "content": question})
        answer = reply(loaded, messages, options, is_shown=not json)
        messages.append({"role": "assistant", "content": answer.text})
        if json:
            print_json({**messages[-1], **details(answer, loaded, options)})
        elif finish_reason(answer) == "length":
            status(f"[stopped at --max-tokens after {len(answer.tokens)} tokens]")


def reply(
    loaded: LoadedModel, messages: list[dict[str, str]], options: GenerationOptions, is_shown: bool
) -> Completion:
    """The answer to a conversation, printed as it is generated."""
    from weft.engine.client import Completion

    answer = Completion()
    for output in loaded.stream(loaded.chat_ids(messages), options):
        answer.add(output)
        if is_shown:
            print(output.text, end="", flush=True)
    if is_shown:
        print(flush=True)
    return answer


def details(answer: Completion, loaded: LoadedModel, options: GenerationOptions) -> dict[str, Any]:
    """The fields of --json besides the text."""
    result: dict[str, Any] = {"finish_reason": finish_reason(answer)}
    if options.sampling.logprobs is not None:
        result["logprobs"] = logprob_list(answer, loaded.tokenizer)
    return result


def read_turn(is_terminal: bool) -> str:
    """The next line; empty at the end."""
    if is_terminal:
        print("> ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip()
