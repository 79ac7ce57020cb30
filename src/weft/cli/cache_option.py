"""--keep FILE: load the prefix cache at the start of a command and save it at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.output import status

if TYPE_CHECKING:
    from weft.engine.loaded_model import LoadedModel

Keep = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Load and save the prefix cache in FILE."),
]


@contextmanager
def prefix_cache_file(model: LoadedModel, path: str | None) -> Iterator[None]:
    """Load the cache if the file exists; save it when the command is done or interrupted. After an
    error the file stays as it was."""
    if path is None:
        yield
        return
    engine = model.client.engine
    if Path(path).exists():
        status(f"loaded {path}: {engine.load_cache(path)}")
    try:
        yield
    except KeyboardInterrupt:
        engine.save_cache(path)
        raise
    status(f"saved {path}: {engine.save_cache(path)}")
