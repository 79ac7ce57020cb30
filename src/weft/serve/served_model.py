"""Served models: names -> loaded models with their engines.

    models = ModelRegistry({"smollm2": "smollm2", "dates": "runs/demo"}, load, {"gpt-4o": "dates"})
    models.get("smollm2")           a ServedModel; ApiError 404 or 503 if there is none

A name is the last component of a path without suffix or `@...`. Names with `:latest`, as Ollama's
clients send them, are the same. Loading takes place in a thread; while a model loads, requests for
it are answered with 503 and what is loading.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from weft.core.errors import UsageError, WeftError
from weft.core.registry import nearest
from weft.engine.async_engine import AsyncEngine
from weft.engine.loaded_model import LoadedModel
from weft.engine.request_builder import RequestBuilder
from weft.serve.api_errors import ApiError
from weft.serve.output_parser import REASONING_FORMATS, ReasoningFormat, detect_reasoning_format
from weft.serve.tool_formats import TOOL_FORMATS, ToolFormat, detect_tool_format
from weft.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

LATEST = ":latest"

Loader = Callable[[str], LoadedModel]
"""A path or name -> a model that is ready to serve. Raises a WeftError."""


class ServedModel:
    """A loaded model under a name."""

    def __init__(
        self,
        name: str,
        loaded: LoadedModel,
        tool_format: str | None = None,
        defaults: Mapping[str, Any] | None = None,
        created: int | None = None,
    ) -> None:
        """`tool_format`: a name in TOOL_FORMATS, None: found by the chat template. `defaults`:
        sampling keywords for requests that leave them out."""
        self.name, self.loaded = name, loaded
        self.defaults = dict(defaults or {})
        self.created = int(time.time()) if created is None else created
        """Seconds since 1970, as OpenAI's list of models has them."""
        source = loaded.checkpoint.chat_template
        self.tool_format: ToolFormat = TOOL_FORMATS[tool_format or detect_tool_format(source)]()
        reasoning = detect_reasoning_format(source)
        self.reasoning: ReasoningFormat | None = REASONING_FORMATS[reasoning] if reasoning else None

    @property
    def kind(self) -> str:
        """encoder-decoder, decoder or encoder."""
        return self.loaded.kind

    @property
    def engine(self) -> AsyncEngine:
        return self.loaded.client.async_engine

    @property
    def builder(self) -> RequestBuilder:
        return self.loaded.request_builder

    @property
    def tokenizer(self) -> Tokenizer:
        return self.loaded.tokenizer

    @property
    def max_len(self) -> int:
        """Prompt and new tokens together."""
        return self.loaded.model.config.max_cached_len

    @property
    def can_chat(self) -> bool:
        return self.kind == "decoder" and self.loaded.checkpoint.chat_template is not None

    def check_kind(self, *kinds: str) -> None:
        """Raise an ApiError 400 if a route needs another kind of model."""
        if self.kind not in kinds:
            raise ApiError(
                400,
                f"model '{self.name}' is of kind {self.kind}: this route needs a model of kind "
                f"{' or '.join(kinds)}. Use another model or route.",
                param="model",
            )


class ModelRegistry:
    """The models of one server. Thread-safe."""

    def __init__(
        self,
        paths: Mapping[str, str],
        load: Loader,
        aliases: Mapping[str, str] | None = None,
        make: Callable[[str, LoadedModel], ServedModel] = ServedModel,
    ) -> None:
        """`paths`: name -> what `weft.load` takes; `aliases`: another name -> name."""
        self.paths, self.aliases = dict(paths), dict(aliases or {})
        self.load, self.make = load, make
        self.models: dict[str, ServedModel] = {}
        self.failures: dict[str, str] = {}
        """Models that could not be loaded, with the sentence that says why."""
        self.lock = threading.Lock()
        for alias, name in self.aliases.items():
            if name not in self.paths or alias in self.paths:
                raise UsageError(
                    f"--alias {alias}={name}: '{name}' must be a served model and '{alias}' must "
                    f"not. Served are {', '.join(self.paths)}."
                )

    @property
    def names(self) -> list[str]:
        """All names that a request may use."""
        return [*self.paths, *self.aliases]

    @property
    def loading(self) -> list[str]:
        """Names of models that are not loaded yet."""
        return [name for name in self.paths if name not in self.models]

    def load_all(self) -> None:
        """Load every model, one after another. Raises the WeftError of one that fails."""
        for name in self.paths:
            self.load_model(name)

    def load_model(self, name: str) -> ServedModel:
        """The model, loaded if it is not."""
        with self.lock:
            if name not in self.models:
                try:
                    served = self.make(name, self.load(self.paths[name]))
                except WeftError as error:
                    self.failures[name] = str(error)
                    raise
                self.models[name] = served
            return self.models[name]

    def resolve(self, name: str | None) -> str:
        """The name of the model that a request means; an ApiError 404 if there is none. Without a
        name, the only model is meant."""
        if name is None and len(self.paths) == 1:
            return next(iter(self.paths))
        wanted = (name or "").removesuffix(LATEST)
        wanted = self.aliases.get(name or "", self.aliases.get(wanted, wanted))
        if wanted in self.paths:
            return wanted
        guess = nearest(wanted, self.names)
        hint = f" Did you mean '{guess}'?" if guess else ""
        raise ApiError(
            404,
            f"model {name!r} is not served here.{hint} Served are {', '.join(self.names)}.",
            param="model",
            code="model_not_found",
        )

    def get(self, name: str | None) -> ServedModel:
        """The model that a request means, which is loaded."""
        resolved = self.resolve(name)
        if resolved not in self.models:
            reason = self.failures.get(resolved, "it is being loaded. Try again in some seconds.")
            headers = {} if resolved in self.failures else {"retry-after": "2"}
            raise ApiError(503, f"model '{resolved}' is not ready: {reason}", headers=headers)
        return self.models[resolved]

    def close(self) -> None:
        """End the engine threads."""
        for served in self.models.values():
            served.loaded.close()


def served_name(model: str) -> str:
    """The name under which a model is served: runs/demo@best -> demo, a/b.gguf -> b."""
    last = Path(model.rstrip("/")).name or model
    if not Path(model).exists():
        last = last.partition("@")[0]
    return last.removesuffix(".gguf") or last


def parse_models(models: list[str]) -> dict[str, str]:
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
