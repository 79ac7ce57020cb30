"""`weft generate`: a prompt -> the text that follows, as it comes."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from weft.cli.output import print_json

Model = Annotated[str, typer.Argument(metavar="MODEL", help="A folder, a .gguf file or a name.")]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="Most new tokens.", show_default="128")]
Temperature = Annotated[float, typer.Option(min=0, help="0: always the most likely token.")]
TopK = Annotated[int, typer.Option(min=0, help="Only the k most likely tokens; 0: all.")]
TopP = Annotated[float, typer.Option(help="Only the likeliest that together reach this.")]
MinP = Annotated[float, typer.Option(help="Only tokens at least this share of the likeliest.")]
Seed = Annotated[int, typer.Option(min=0, help="The same seed, the same text.")]
Stop = Annotated[list[str] | None, typer.Option(help="End before this text; may be repeated.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")]


def command(
    model: Model,
    prompt: Annotated[str, typer.Argument(metavar="[PROMPT]", help="None or -: stdin.")] = "-",
    max_tokens: MaxTokens = None,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    seed: Seed = 0,
    stop: Stop = None,
    device: Device = "auto",
    json: Annotated[
        bool, typer.Option("--json", help="text, tokens and usage, at the end.")
    ] = False,
) -> None:
    """Continue a text; the words appear as they are written.

    \b
    Example:
      weft generate smollm2 "The capital of France is" --max-tokens 10
      weft generate runs/shakespeare "ROMEO:" --temperature 0.8 --seed 7
      weft generate smollm2 "1, 2, 3," --stop "7" --json
    """
    from weft.engine.load import load
    from weft.sampling.settings import SamplingConfig

    text = sys.stdin.read() if prompt == "-" else prompt
    sampling = SamplingConfig(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed
    )
    writer = load(model, device)
    ids = writer.prompt_ids(text)
    updates = writer.write(ids, max_tokens, sampling, stop or [])
    if json:
        found = list(updates)
        tokens = [token for update in found for token in update.tokens]
        usage = {"prompt_tokens": len(ids), "completion_tokens": len(tokens)}
        text = "".join(update.text for update in found)
        print_json({"text": text, "tokens": tokens, "usage": usage})
        return
    for update in updates:
        print(update.text, end="", flush=True)
    print()
