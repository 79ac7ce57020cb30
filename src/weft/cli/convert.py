"""`weft convert`: a model in any format -> a Hugging Face folder, a GGUF file or a Weft folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from weft.cli.output import print_json, say


def command(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A folder, a .gguf file or a name.")
    ],
    out: Annotated[Path, typer.Argument(help="What to write; it must not be there yet.")],
    to: Annotated[
        Literal["hf", "gguf", "weft"], typer.Option(help="hf: for transformers; gguf: llama.cpp.")
    ],
    family: Annotated[
        str | None,
        typer.Option(help="Write it as llama, marian, ...; by default the first that fits."),
    ] = None,
    dtype: Annotated[
        Literal["f32", "f16", "q8_0"] | None,
        typer.Option(help="gguf: how numbers are stored; f32 if not given."),
    ] = None,
    max_shard_size: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="hf: how large a file may be; 5GB if not given."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Write a model in another format; tokenizer and chat template come along.

    \b
    Example:
      weft convert smollm2 smollm2-hf --to hf
      weft convert smollm2-hf smollm2.gguf --to gguf --dtype q8_0
      weft convert runs/en-de en-de-marian --to hf
    """
    from weft.checkpoint.formats import convert

    written = convert(model, out, to, family, dtype, max_shard_size)
    if json:
        print_json({"out": str(out), "to": to, "family": written})
    else:
        say(f"{out}: written as {written}")
