"""Recipes that come with Weft, by name: `weft info tiny`, `weft train multi30k ...`.

A file of that name wins; then a recipe of the installed package, or of the repository.
"""

from __future__ import annotations

from pathlib import Path

from weft.checkpoint.folder_files import RUN_FILE
from weft.core.errors import DataError, UsageError
from weft.core.registry import nearest


def recipe_folder() -> Path | None:
    """Where the recipes are; None if the installation has none."""
    package = Path(__file__).parents[1]
    folders = (package / "recipes", package.parents[1] / "recipes")
    return next((folder for folder in folders if folder.is_dir()), None)


def recipe_names() -> list[str]:
    folder = recipe_folder()
    return sorted(path.stem for path in folder.glob("*.toml")) if folder else []


def packaged_recipe(name: str) -> Path | None:
    """The recipe of that name."""
    folder = recipe_folder()
    return folder / f"{name}.toml" if folder and name in recipe_names() else None


def find_recipe(name: str | Path) -> Path:
    """A recipe file, or the packaged recipe of that name."""
    path = Path(name)
    if (path / RUN_FILE).is_file():
        raise UsageError(
            f"{path} is the folder of a run, not a recipe. `weft train --out {path}` resumes it."
        )
    if path.exists():
        return path
    packaged = packaged_recipe(str(name))
    if packaged is not None:
        return packaged
    guess = nearest(path.stem, recipe_names())
    hint = f"Did you mean '{guess}'? " if guess else ""
    raise DataError(
        f"there is no such file. {hint}Name a TOML file, or one of the recipes "
        f"{', '.join(recipe_names())}.",
        path,
    )
