"""`weft chat`: a conversation in the model's own template, line by line."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from weft.cli.generate import Device, MaxTokens, MinP, Model, Seed, Temperature, TopK, TopP
from weft.cli.output import print_json, say


def command(
    model: Model,
    system: Annotated[str | None, typer.Option(help="What the model is told first.")] = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    seed: Seed = 0,
    device: Device = "auto",
    json: Annotated[bool, typer.Option("--json", help="One object a turn: role, content.")] = False,
) -> None:
    """Talk with a model. A line is a turn; an empty line or the end of input ends it.

    \b
    Example:
      weft chat smollm2
      echo "What is the capital of France?" | weft chat smollm2
      weft chat smollm2 --system "Answer in one word." --temperature 0.7 --top-p 0.9
    """
    from weft.engine.load import load
    from weft.sampling.settings import SamplingConfig

    sampling = SamplingConfig(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed
    )
    writer = load(model, device)
    messages = [] if system is None else [{"role": "system", "content": system}]
    is_typed = sys.stdin.isatty()
    if is_typed:
        say("Type a line; an empty one ends the conversation.")
    while question := ask(is_typed):
        messages.append({"role": "user", "content": question})
        answer = ""
        for part in writer.chat(messages, max_tokens, sampling):
            answer += part
            if not json:
                print(part, end="", flush=True)
        messages.append({"role": "assistant", "content": answer})
        print_json(messages[-1]) if json else print()


def ask(is_typed: bool) -> str:
    """The next line; empty at the end."""
    if is_typed:
        print("> ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip()
