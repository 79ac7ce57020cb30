"""Options that several commands share, and the settings built from them.

Names are those of llama.cpp, vLLM and transformers where these agree. Values are checked before a
model is loaded.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.output import status
from weft.core.errors import DataError, UsageError

if TYPE_CHECKING:
    from weft.engine.config import EngineConfig
    from weft.engine.loaded_model import LoadedModel

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="Model folder, run (DIR@best), .gguf file or name.")
]
File = Annotated[str, typer.Argument(metavar="FILE", help="Plain or gzip; none or -: stdin.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")]

MaxTokens = Annotated[
    int | None, typer.Option(min=1, help="Maximum number of new tokens.", show_default="128")
]
Stop = Annotated[
    list[str] | None, typer.Option(metavar="TEXT", help="Stop string; may be repeated.")
]
JsonSchema = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Generate JSON that is valid under the schema in FILE."),
]
Regex = Annotated[
    str | None,
    typer.Option(metavar="PATTERN", help="Generate text that matches PATTERN as a whole."),
]

Cache = Annotated[
    str,
    typer.Option(
        metavar="GIB", help="KV cache in GiB; auto: half of the free memory; 0: keep nothing."
    ),
]
PrefixCache = Annotated[str, typer.Option(help="Prefix cache: none, hash or radix.")]
Keep = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Load and save the prefix cache in FILE."),
]
Speculate = Annotated[
    bool,
    typer.Option(
        "--speculate/--no-speculate",
        help="Speculative decoding by prompt lookup; output unchanged.",
    ),
]
Activations = Annotated[
    str,
    typer.Option(
        help="float32, or int8: faster with quantized weights, not exact.",
    ),
]
BatchTokens = Annotated[int, typer.Option(min=1, help="Token budget of a step.")]


MAX_CACHE_GIB = 65536


def parse_folder(text: str) -> Path:
    """The value of --out. Empty, as an unset variable of a shell is, it would be the working
    directory."""
    if not text:
        raise UsageError("the name is empty. Name a folder, or . for the one you are in.")
    return Path(text)


def parse_cache(text: str) -> float | str:
    """The value of --cache: auto, or a number of GiB."""
    if text == "auto":
        return text
    try:
        size = float(text)
    except ValueError:
        size = math.nan
    if not 0 <= size <= MAX_CACHE_GIB:
        raise UsageError(
            f"--cache is {text!r}: it must be a number of GiB from 0, which keeps nothing between "
            f"requests, up to {MAX_CACHE_GIB}, or auto. Try --cache 1."
        )
    return size


def engine_settings(
    cache: str, prefix_cache: str, batch_tokens: int | None = None, **others: object
) -> EngineConfig:
    """The engine settings of a command; `batch_tokens` None: the default token budgets."""
    from weft.engine.config import EngineConfig, batch_settings

    values: dict[str, object] = {
        "cache_gib": parse_cache(cache),
        "prefix_cache": prefix_cache,
        **others,
    }
    if batch_tokens is not None:
        values |= batch_settings(batch_tokens)
    return EngineConfig.from_dict(values)


def ready_model(
    model: str, device: str, engine: EngineConfig, is_threaded: bool = True
) -> LoadedModel:
    """Load the model of a command, which it uses until it exits. `is_threaded` False: engine steps
    run in the thread that waits for their outputs."""
    from weft.engine.loaded_model import load
    from weft.engine.worker_pool import freeze_gc

    loaded = load(model, device, engine=engine)
    loaded.is_threaded = is_threaded  # read when its client is created, on first use
    freeze_gc()
    return loaded


def option(name: str) -> str:
    """The command-line option of a field: top_k -> --top-k."""
    return "--" + name.replace("_", "-")


def check_logprobs(logprobs: int | None, is_json: bool) -> None:
    """Raise a UsageError for --logprobs without --json."""
    if logprobs is not None and not is_json:
        raise UsageError(
            f"--logprobs is {logprobs}, but only --json prints log-probabilities. Add --json."
        )


def read_schema(path: Path | None) -> Any:
    """The JSON value in a file; None without a file."""
    from weft.core.config import read_text, syntax_problem

    if path is None:
        return None
    text = read_text(path)  # its DataErrors are ValueErrors too
    try:
        return json.loads(text)
    except ValueError as error:
        raise DataError(
            f"cannot be read as JSON: {syntax_problem(error)}. Correct it.", path
        ) from None
    except RecursionError:
        raise DataError("it is nested too deeply for a schema.", path) from None


@contextmanager
def prefix_cache_file(model: LoadedModel, path: str | None) -> Iterator[None]:
    """--keep FILE: load the prefix cache if the file exists; save it when the command is done or
    interrupted. After an error the file stays as it was."""
    if path is None:
        yield
        return
    from weft.engine.cache_file import check_cache_path

    if not model.engine_config.keeps_requests:
        raise UsageError(f"--keep is {path}, but --cache is 0, which keeps nothing. Omit one.")
    client = model.client
    check_cache_path(Path(path))
    if Path(path).exists():
        status(f"loaded {path}: {client.call(lambda engine: engine.load_cache(path))}")
    try:
        yield
    except KeyboardInterrupt:
        client.call(lambda engine: engine.save_cache(path))
        raise
    status(f"saved {path}: {client.call(lambda engine: engine.save_cache(path))}")


def parse_words(text: str) -> list[str]:
    """'a, b' -> ['a', 'b']."""
    return [word.strip() for word in text.split(",") if word.strip()]


def parse_integers(text: str, option: str, example: str) -> list[int]:
    """'1,5' -> [1, 5]; `option` and `example` are used in the error message."""
    try:
        return [int(word) for word in parse_words(text)]
    except ValueError:
        raise UsageError(
            f"{option} is '{text}': it must be integers separated by commas, such as {example}."
        ) from None
