"""`weft settings`: every setting of a recipe with type, default and meaning."""

from __future__ import annotations

from typing import Annotated

import typer

from weft.cli.output import print_json
from weft.core.errors import UsageError
from weft.core.registry import nearest

Path = Annotated[
    str, typer.Argument(metavar="PATH", help="A section or setting, such as train.schedule.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object per setting.")]


def command(path: Path = "", json: Json = False) -> None:
    """The settings of a recipe: what a TOML file or --set NAME=VALUE may contain.

    \b
    Example:
      weft settings train
      weft settings model.attention.num_heads
      weft settings --json
    """
    from weft.cli.setting_list import below, setting_rows
    from weft.training.recipe import Recipe

    rows = list(setting_rows(Recipe))
    chosen = below(rows, path)
    if not chosen:
        guess = nearest(path, [row.path for row in rows])
        hint = f"Did you mean '{guess}'? " if guess else ""
        raise UsageError(f"'{path}' is not a setting. {hint}`weft settings` lists all.")
    for row in chosen:
        if json:
            print_json(vars(row))
            continue
        kinds = f"  [{', '.join(row.kinds)}]" if row.kinds else ""
        default = f" = {row.default}" if row.default else ""
        print(f"{row.path}{default}  ({row.type}){kinds}")
        print(f"    {row.meaning}")
