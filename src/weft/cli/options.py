"""Options that several commands share, and the settings that they become.

Names are those of llama.cpp, vLLM and transformers where these agree. Everything here is checked
before a model is loaded, so that a wrong value costs nobody a minute.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.core.errors import DataError, UsageError

if TYPE_CHECKING:
    from weft.engine.config import EngineConfig
    from weft.engine.model import LoadedModel

Model = Annotated[str, typer.Argument(metavar="MODEL", help="A folder, a .gguf file or a name.")]
File = Annotated[str, typer.Argument(metavar="[FILE]", help="Plain or gzip; none or -: stdin.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")]

MaxTokens = Annotated[int | None, typer.Option(min=1, help="Most new tokens.", show_default="128")]
Stop = Annotated[
    list[str] | None, typer.Option(metavar="TEXT", help="End before this text; may be repeated.")
]
JsonSchema = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write JSON that fits the schema in FILE.")
]
Regex = Annotated[
    str | None,
    typer.Option(metavar="PATTERN", help="Write what matches PATTERN from beginning to end."),
]

Cache = Annotated[
    float,
    typer.Option(metavar="GIB", min=0, max=65536, help="Memory for what attention keeps, in GiB."),
]
PrefixCache = Annotated[
    str, typer.Option(help="none, hash or radix: how prompts share what they have in common.")
]
Speculate = Annotated[
    bool,
    typer.Option(
        "--speculate/--no-speculate", help="Guess tokens from the text so far; the same result."
    ),
]
Activations = Annotated[
    str,
    typer.Option(
        help="float32, or int8: faster with weights of few bits, and not exact.",
    ),
]
BatchTokens = Annotated[int, typer.Option(min=1, help="Tokens that one step computes.")]


def engine_settings(
    cache: float, prefix_cache: str, batch_tokens: int | None = None, **others: object
) -> EngineConfig:
    """The engine that a command asks for; without `batch_tokens`, its own steps."""
    from weft.engine.config import EngineConfig, batch_settings

    values: dict[str, object] = {"cache_gib": cache, "prefix_cache": prefix_cache, **others}
    if batch_tokens is not None:
        values |= batch_settings(batch_tokens)
    return EngineConfig.from_dict(values)


def ready_model(model: str, device: str, engine: EngineConfig) -> LoadedModel:
    """The model that a command works with, until its end."""
    from weft.engine.load import load
    from weft.engine.team import freeze_gc

    found = load(model, device, engine=engine)
    freeze_gc()
    return found


def option(name: str) -> str:
    """A setting as it is written on the command line."""
    return "--" + name.replace("_", "-")


def refuse_logprobs(logprobs: int | None, is_json: bool) -> None:
    if logprobs is not None and not is_json:
        raise UsageError(
            f"--logprobs is {logprobs}, but only --json has a place for them. Add --json."
        )


def read_schema(path: Path | None) -> Any:
    """The JSON in a file; None for no file."""
    from weft.core.config import read_text

    if path is None:
        return None
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise DataError(f"cannot be read as JSON: {error}. Mend that place.", path) from None
    except RecursionError:
        raise DataError("it is nested too deeply to be a schema.", path) from None
