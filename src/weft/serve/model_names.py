"""Names of served models, known before a model is loaded.

    parse_models(["runs/demo@best", "chat=smollm2"])    {"demo": "runs/demo@best", "chat": ...}
    pulled_models()                                     {"smollm2": "smollm2"}

A name is the last component of a path without suffix or `@...`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from weft.checkpoint.pulled_models import pull_hint, pulled_names, resolve
from weft.core.errors import DataError, UsageError


def served_name(model: str) -> str:
    """The name under which a model is served: runs/demo@best -> demo, a/b.gguf -> b."""
    last = Path(model.rstrip("/")).name or model
    if not Path(model).exists():
        last = last.partition("@")[0]
    return last.removesuffix(".gguf") or last


def parse_models(models: Sequence[str]) -> dict[str, str]:
    """Arguments of `weft serve`, `MODEL` or `NAME=MODEL` -> {name: model}."""
    paths: dict[str, str] = {}
    for argument in models:
        name, equals, path = argument.partition("=")
        if not equals or Path(argument).exists():
            name, path = served_name(argument), argument
        if not name or not path:
            raise UsageError(f"'{argument}' is not NAME=MODEL. Use for example demo=runs/demo.")
        if name in paths:
            raise UsageError(
                f"two models have the name '{name}'. Give them names: NAME=MODEL, NAME=MODEL."
            )
        paths[name] = path
    return paths


def pulled_models() -> dict[str, str]:
    """The models installed by `weft pull`: {name: name}."""
    return {name: name for name in pulled_names()}


def check_exists(model: str) -> None:
    """Raise a DataError for a model that is not on this disk. Reads nothing of it."""
    path = resolve(model)
    base = Path(str(path).partition("@")[0])
    if not path.exists() and not base.exists():
        raise DataError(
            f"there is no such model. {pull_hint(model)}Give a folder, a .gguf file, or a name "
            "installed by `weft pull`.",
            model,
        )
