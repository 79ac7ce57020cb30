"""--keep FILE: what attention has kept of earlier prompts, carried from one run to the next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.output import say

if TYPE_CHECKING:
    from weft.engine.model import LoadedModel

Keep = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Begin with the cache that an earlier run left here, and leave this one's.",
    ),
]


@contextmanager
def kept(model: LoadedModel, path: str | None) -> Iterator[None]:
    """Load the cache if there is one; save it when the work is done or interrupted. A run that
    fails leaves the file as it was."""
    if path is None:
        yield
        return
    engine = model.desk.engine
    if Path(path).exists():
        say(f"{path}: {engine.load_cache(path)}")
    try:
        yield
    except KeyboardInterrupt:
        engine.save_cache(path)
        raise
    say(f"kept in {path}: {engine.save_cache(path)}")
