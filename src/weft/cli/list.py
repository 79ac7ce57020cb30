"""`weft list`: the models that `weft pull` has installed."""

from __future__ import annotations

from typing import Annotated

import typer

from weft.checkpoint.disk_space import format_bytes
from weft.checkpoint.pulled_models import PulledModel, models_folder, pulled_models
from weft.cli.output import print_json, print_table, status

ADVICE = {
    "damaged": "a file is missing or has another size: `weft pull {}` downloads it again",
    "incomplete": "the download was interrupted: `weft pull {}` continues it",
}
SHOWN_REVISION = 12
"""Characters of a commit in the table; --json has all."""


def command(
    json: Annotated[bool, typer.Option("--json", help="One JSON object per model.")] = False,
) -> None:
    """List the models that `weft pull` has installed: family, size on disk and revision.

    \b
    Example:
      weft list
      weft list --json
      weft info smollm2 --verify
    """
    models = pulled_models()
    rows = [(model, model.family or family_of(model)) for model in models]
    if json:
        for model, family in rows:
            print_json({**model.to_dict(), "family": family})
        return
    if not models:
        status(f"no models are pulled into {models_folder()}; try `weft pull smollm2`")
        return
    print_table(["name", "family", "size", "revision"], [row_of(*row) for row in rows])
    for model in models:
        if model.state != "complete":
            status(f"{model.name}: {ADVICE[model.state].format(model.name)}")


def row_of(model: PulledModel, family: str | None) -> list[str | None]:
    revision = model.revision[:SHOWN_REVISION] if model.revision else None
    shown = family if model.state == "complete" else f"({model.state})"
    return [model.name, shown, format_bytes(model.num_bytes), revision]


def family_of(model: PulledModel) -> str | None:
    """The family by the headers, for models that an earlier version pulled; None: not known."""
    from weft.checkpoint.description import describe, find_format
    from weft.checkpoint.pulled_models import resolve
    from weft.core.errors import WeftError

    if model.state != "complete":
        return None
    try:
        name = find_format(resolve(model.name))
        if name in (None, "fairseq"):  # whose headers only torch can read
            return name
        return describe(model.name).family or name
    except (WeftError, OSError):
        return None
