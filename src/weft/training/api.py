"""`weft.train(recipe)`: the Python call. A recipe, as a file, a dict or a Recipe -> a model folder.

The recipe's [data] section names the files and the folder; paths in a file are relative to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.core.config import read_settings
from weft.core.device import choose_device
from weft.core.errors import UsageError
from weft.training.data.files import Files
from weft.training.loop import Watch
from weft.training.run import run_training
from weft.training.settings import DataConfig, Recipe


def train(
    recipe: str | Path | Mapping[str, Any] | Recipe,
    out: str | Path | None = None,
    watch: Watch = lambda progress: None,
    device: str = "auto",
) -> dict[str, Any]:
    """Train, or go on training, the model that a recipe describes; its scores."""
    folder = Path()
    if isinstance(recipe, str | Path):
        folder = Path(recipe).parent
        recipe = Recipe.from_dict(read_settings(recipe), where=str(recipe))
    elif not isinstance(recipe, Recipe):
        recipe = Recipe.from_dict(recipe)
    target = out or (recipe.data.out and folder / recipe.data.out)
    if not target:
        raise UsageError(
            "the recipe's data.out is empty. Name the model folder there, or give out=."
        )
    files = files_of(recipe.data, folder)
    return run_training(recipe, files, Path(target), watch, device=choose_device(device))


def files_of(data: DataConfig, folder: Path = Path()) -> Files:
    """The files that a [data] section names, relative to `folder`."""

    def paths(names: tuple[str, ...]) -> tuple[Path, ...]:
        return tuple(folder / name for name in names)

    given = [
        name
        for name, value in (("pairs", data.pairs), ("tsv", data.tsv), ("text", data.text))
        if value
    ]
    if len(given) != 1:
        told = " and ".join(given) or "none of pairs, tsv and text"
        raise UsageError(f"{told} given: a run learns from exactly one of the three.")
    if data.text:
        return Files(data.objective, paths(data.text), paths(data.valid))
    if data.tsv:
        return Files("translate", paths((data.tsv,)), paths(data.valid), data.columns)
    return Files("translate", paths(data.pairs), paths(data.valid))
