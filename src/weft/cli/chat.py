"""`weft chat`: a conversation in the model's own template, line by line."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.answers import finish_reason, logprob_list
from weft.cli.generation_options import GenerationOptionGroup
from weft.cli.keeping import Keep, kept
from weft.cli.option_groups import with_groups
from weft.cli.options import Device, MaxTokens, Model, ready_model, refuse_logprobs
from weft.cli.output import print_json, say

if TYPE_CHECKING:
    from weft.engine.answers import Answer
    from weft.engine.model import LoadedModel
    from weft.engine.options import Options


@with_groups
def command(
    model: Model,
    system: Annotated[str | None, typer.Option(help="What the model is told first.")] = None,
    max_tokens: MaxTokens = None,
    *,
    generation: GenerationOptionGroup,
    keep: Keep = None,
    device: Device = "auto",
    json: Annotated[
        bool, typer.Option("--json", help="One object a turn: role, content, finish_reason.")
    ] = False,
) -> None:
    """Talk with a model. A line is a turn; an empty line or the end of input ends it.

    \b
    Example:
      weft chat smollm2
      echo "What is the capital of France?" | weft chat smollm2
      weft chat smollm2 --system "Answer in one word." --temperature 0.7 --top-p 0.9
    """
    refuse_logprobs(generation.logprobs, json)
    from weft.engine.load import check_model

    options, engine = generation.options(max_tokens), generation.engine
    check_model(model, "chat", max_tokens)
    writer = ready_model(model, device, engine)
    assert writer.requests.template, "a model without a template was not refused"
    messages = [] if system is None else [{"role": "system", "content": system}]
    with kept(writer, keep):
        converse(writer, messages, options, json)


def converse(
    writer: LoadedModel, messages: list[dict[str, str]], options: Options, json: bool
) -> None:
    """Turn after turn, until an empty line; the messages grow."""
    is_typed = sys.stdin.isatty()
    if is_typed:
        say("Type a line; an empty one ends the conversation.")
    while question := ask(is_typed):
        messages.append({"role": "user", "content": question})
        answer = reply(writer, messages, options, is_shown=not json)
        messages.append({"role": "assistant", "content": answer.text})
        if json:
            print_json({**messages[-1], **details(answer, writer, options)})
        elif finish_reason(answer) == "length":
            say(f"[cut after {len(answer.tokens)} tokens: --max-tokens sets how many]")


def reply(
    writer: LoadedModel, messages: list[dict[str, str]], options: Options, is_shown: bool
) -> Answer:
    """The answer to a conversation, printed as it comes."""
    from weft.engine.answers import Answer

    answer = Answer()
    for update in writer.write(writer.chat_ids(messages), options):
        answer.add(update)
        if is_shown:
            print(update.text, end="", flush=True)
    if is_shown:
        print(flush=True)
    return answer


def details(answer: Answer, writer: LoadedModel, options: Options) -> dict[str, Any]:
    """What --json tells of an answer besides its text."""
    told: dict[str, Any] = {"finish_reason": finish_reason(answer)}
    if options.sampling.logprobs is not None:
        told["logprobs"] = logprob_list(answer, writer.tokenizer)
    return told


def ask(is_typed: bool) -> str:
    """The next line; empty at the end."""
    if is_typed:
        print("> ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip()
