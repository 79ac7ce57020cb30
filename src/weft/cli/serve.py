"""`weft serve`: serve models over HTTP.

The options are derived from the fields of ServeConfig: a new field there is an option, a variable
WEFT_SERVE_* and a name in the file of --config without a change here.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from weft.cli.option_groups import OptionGroup, keyword, with_groups
from weft.cli.options import option
from weft.cli.output import status
from weft.core.errors import UsageError
from weft.core.openmp import cpu_threads

if TYPE_CHECKING:
    from fastapi import APIRouter
    from pydantic.fields import FieldInfo

    from weft.serve.config import ServeConfig
    from weft.serve.context import Service

log = logging.getLogger(__name__)

LIBRARIES = ("fastapi", "uvicorn", "httptools", "orjson", "prometheus_client")
"""What the extra `serve` installs."""

METAVARS = {
    "alias": "NAME=MODEL",
    "languages": "NAME=SOURCE:TARGET",
    "uds": "PATH",
    "tls_cert": "FILE",
    "tls_key": "FILE",
    "api_keys": "FILE",
    "chat_template": "FILE",
    "cache": "GIB",
    "keep": "DIR",
    "activations": "TEXT",
}


@dataclass(frozen=True)
class ServeOptions(OptionGroup):
    """One option for each field of ServeConfig but `models`. None: not set."""

    values: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def fields(cls) -> dict[str, FieldInfo]:
        from weft.serve.config import ServeConfig

        fields = dict(ServeConfig.model_fields)
        del fields["models"]
        return fields

    @classmethod
    def parameters(cls) -> Iterator[Parameter]:
        for name, one in cls.fields().items():
            yield keyword(name, None, option_annotation(name, one))

    @classmethod
    def collect(cls, arguments: dict[str, Any]) -> Self:
        return cls({name: arguments.pop(name) for name in cls.fields()})


def option_annotation(name: str, one: FieldInfo) -> Any:
    """The annotation that makes typer read a field as text; ServeConfig checks it."""
    from weft.serve.config import container

    kind = container(one)
    if one.annotation is bool:
        return Annotated[bool | None, typer.Option(option(name), help=one.description)]
    if kind is not None:
        info = typer.Option(
            option(name),
            metavar=METAVARS.get(name, "NAME=VALUE" if kind is dict else "TEXT"),
            help=f"{one.description} May be repeated.",
        )
        return Annotated[list[str] | None, info]
    default = False if one.default is None else str(one.default)
    kinds = str(one.annotation)
    metavar = METAVARS.get(name, "NUMBER" if "int" in kinds or "float" in kinds else "TEXT")
    info = typer.Option(option(name), metavar=metavar, help=one.description, show_default=default)
    return Annotated[str | None, info]


@with_groups
def command(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL | NAME=MODEL",
            help="Model folders, .gguf files or names; none: all pulled models.",
        ),
    ] = None,
    *,
    options: ServeOptions,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TOML file with the same names.")
    ] = None,
    workers: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Serve models over HTTP, for programs that use OpenAI's, Anthropic's or Ollama's API.

    \b
    Example:
      weft serve runs/demo
      weft serve smollm2 dates=runs/demo --port 8080 --alias gpt-4o=smollm2
      weft serve --config serve.toml --log-format json
      curl http://127.0.0.1:8000/v1/models

    Each option can also be set as a variable, WEFT_SERVE_PORT=8080, or in the file of --config,
    port = 8080. An option wins over a variable, a variable over the file. See docs/serve.md.
    """
    if workers is not None:
        raise UsageError(
            f"--workers is {workers}: one process serves all requests of its models, with all "
            "cores. To use several machines, see docs/scale.md."
        )
    check_libraries()
    from weft.serve.config import serve_settings

    given = {**options.values, "models": models}
    run(serve_settings(given, os.environ, config))


def check_libraries() -> None:
    """Raise a UsageError if a library of the extra `serve` is missing."""
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"weft serve needs {', '.join(missing)}, which is not installed. Install it with: pip "
            "install 'weft[serve]'"
        )


def look_routers(service: Service) -> Sequence[APIRouter]:
    """The routes below /look, imported with torch in the loading thread."""
    from weft.cli import look_host

    return look_host.look_routers(service)


def run(config: ServeConfig) -> None:
    """Serve until a signal."""
    from weft.look.assets import PageApp
    from weft.serve.api_keys import ApiKeys
    from weft.serve.config import unknown_variables
    from weft.serve.model_names import check_exists, parse_models, pulled_models
    from weft.serve.request_log import configure_logging
    from weft.serve.server import HttpServer

    paths = parse_models(config.models) or pulled_models()
    if not paths:
        raise UsageError(
            "no model is named, and none is installed. Name one, as in `weft serve runs/demo`, or "
            "install one with `weft pull smollm2`."
        )
    for model in paths.values():
        check_exists(model)
    keys = ApiKeys.configured(
        None if config.api_keys is None else Path(config.api_keys), os.environ
    )
    configure_logging(config)
    for name in unknown_variables(os.environ):
        log.warning("variable=%s state=ignored reason='no setting has this name'", name)
    with cpu_threads(config.threads):
        report = status if config.log_format == "text" else log.info  # no text between JSON lines
        server = HttpServer(config, paths, keys, report, not config.models, PageApp(), look_routers)
        server.run_until_stopped()
