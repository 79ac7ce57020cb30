"""`weft rm`: remove a model that `weft pull` has installed."""

from __future__ import annotations

from typing import Annotated

import typer

from weft.checkpoint.disk_space import format_bytes
from weft.checkpoint.pulled_models import remove_model
from weft.cli.output import print_json, status

Pulled = Annotated[str, typer.Argument(metavar="NAME", help="A name of `weft list`.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object.")]


def command(name: Pulled, json: Json = False) -> None:
    """Remove a model that `weft pull` has installed, or what an interrupted download left.

    \b
    Example:
      weft rm smollm2
      weft rm HuggingFaceTB/SmolLM2-360M-Instruct

    Other folders, such as training runs, are not removed.
    """
    num_bytes = remove_model(name)
    if json:
        print_json({"name": name, "removed_bytes": num_bytes})
    else:
        status(f"{name}: removed, {format_bytes(num_bytes)} are free again")
