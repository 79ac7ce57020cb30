"""`weft convert`: a model in any format -> a Hugging Face folder, a GGUF file or a Weft folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from weft.cli.output import print_json, status


def command(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Model folder, .gguf file or name.")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Output path; must not exist yet.")],
    to: Annotated[
        Literal["hf", "gguf", "weft"], typer.Option(help="hf: for transformers; gguf: llama.cpp.")
    ],
    family: Annotated[
        str | None,
        typer.Option(
            help="Target family: llama, marian, ...; default: the first that can hold it."
        ),
    ] = None,
    dtype: Annotated[
        Literal["f32", "f16", "q8_0"] | None,
        typer.Option(help="gguf: data type of the weights; default: f32."),
    ] = None,
    max_shard_size: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="hf: maximum size of a file; default: 5GB."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Write a model in another format, with its tokenizer and chat template.

    \b
    Example:
      weft convert smollm2 smollm2-hf --to hf
      weft convert smollm2-hf smollm2.gguf --to gguf --dtype q8_0
      weft convert runs/en-de en-de-marian --to hf
    """
    from weft.checkpoint.formats import convert

    written = convert(model, out, to, family, dtype, max_shard_size, status)
    if json:
        print_json({"out": str(out), "to": to, "family": written})
    else:
        status(f"{out}: written as {written}")
