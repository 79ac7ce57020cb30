"""Served models: names -> loaded models with their engines.

    models = ModelRegistry({"smollm2": "smollm2", "dates": "runs/demo"}, load, {"gpt-4o": "dates"})
    models.get("smollm2")           a ServedModel; ApiError 404 or 503 if there is none

The suffix `:latest` of a name, which Ollama's clients add, is ignored. The models of the command
line are loaded in a thread at startup; until then, requests for them are answered with 503. Models
that are loaded on demand are loaded one at a time in another thread, while their requests wait
(app.py).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from weft.core.errors import UsageError, WeftError
from weft.core.registry import nearest
from weft.engine.async_engine import AsyncEngine
from weft.engine.engine_thread import EngineThread
from weft.engine.loaded_model import LoadedModel
from weft.engine.request_builder import RequestBuilder
from weft.serve.api_errors import ApiError
from weft.serve.output_parser import REASONING_FORMATS, ReasoningFormat, detect_reasoning_format
from weft.serve.tool_formats import TOOL_FORMATS, ToolFormat, detect_tool_format
from weft.text.languages import LanguagePair
from weft.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

LATEST = ":latest"

Loader = Callable[[str], LoadedModel]
"""Function that loads the model at a path or of a name. Raises a WeftError."""


class NotLoadedError(Exception):
    """The model of a request is loaded on demand, and is not loaded yet."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class ServedModel:
    """A loaded model with the name and settings it is served with."""

    def __init__(
        self,
        name: str,
        loaded: LoadedModel,
        tool_format: str | None = None,
        defaults: Mapping[str, Any] | None = None,
        created: int | None = None,
        max_len: int | None = None,
        languages: LanguagePair | None = None,
    ) -> None:
        """`tool_format`: a name in TOOL_FORMATS; None: detected from the chat template. `defaults`:
        default sampling keywords, which override those of the checkpoint. `max_len`: a lower limit
        than the model's. `languages`: codes of source and target; None: those of the checkpoint."""
        self.name, self.loaded = name, loaded
        self.max_len = checked_len(name, max_len, loaded.model.config.max_cached_len)
        """Context length: maximum number of prompt and new tokens together."""
        self.defaults = loaded.generation_config.sampling_keywords(defaults or {})
        self.languages = checked_languages(name, loaded, languages)
        """Language codes (source, target) of a translation model; None: unknown."""
        self.created = int(time.time()) if created is None else created
        """Unix time, for OpenAI's list of models."""
        self.reserving: Future[None] | None = None
        """Done when the memory of the KV cache is allocated; None: `reserve` was not called."""
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

    def reserve(self) -> None:
        """Start to allocate the memory of the KV cache, in units between engine steps."""
        store = self.engine.engine.runner.store
        if store is not None:
            self.reserving = self.engine.run_units(store.reserve_units())

    def use_huge_pages(self) -> None:
        """Start to move the weights to huge pages, in units between engine steps."""
        self.engine.run_units(self.engine.engine.huge_page_units())

    @property
    def is_reserving(self) -> bool:
        return self.reserving is not None and not self.reserving.done()

    @property
    def builder(self) -> RequestBuilder:
        return self.loaded.request_builder

    @property
    def tokenizer(self) -> Tokenizer:
        return self.loaded.tokenizer

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


def checked_len(name: str, asked: int | None, limit: int) -> int:
    """The context length; raises a UsageError if `asked` exceeds the model's limit."""
    if asked is not None and asked > limit:
        raise UsageError(
            f"max_model_len is {asked}, but the limit of model '{name}' is {limit}. Use at most "
            "that."
        )
    return asked or limit


def checked_languages(
    name: str, loaded: LoadedModel, given: LanguagePair | None
) -> LanguagePair | None:
    """The languages given, or those of the checkpoint; a UsageError if the model has none."""
    if given is not None and loaded.kind != "encoder-decoder":
        raise UsageError(
            f"--languages {name}={':'.join(given)}: the model is of kind {loaded.kind}, and only "
            "translation models have languages. Leave it out."
        )
    return given or loaded.checkpoint.languages


class ModelRegistry:
    """The models of one server. Thread-safe."""

    def __init__(
        self,
        paths: Mapping[str, str],
        load: Loader,
        aliases: Mapping[str, str] | None = None,
        make: Callable[[str, LoadedModel], ServedModel] = ServedModel,
        is_on_demand: bool = False,
        thread: EngineThread | None = None,
    ) -> None:
        """`paths`: name -> path or name for `weft.load`. `aliases`: alias -> name. `is_on_demand`:
        models are loaded at their first request. `thread`: the thread of all engines, closed by
        `close`; None: each engine has its own."""
        self.is_on_demand, self.thread = is_on_demand, thread
        self.paths, self.aliases = dict(paths), dict(aliases or {})
        self.load, self.make = load, make
        self.models: dict[str, ServedModel] = {}
        self.failures: dict[str, str] = {}
        """Error messages of the models that could not be loaded."""
        self.lock = threading.Lock()
        self.loader: ThreadPoolExecutor | None = None
        """Executor that loads models on demand, one at a time."""
        self.futures: dict[str, Future[ServedModel]] = {}
        """By name of the models that the executor loads or will load."""
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
        """Names of models that are still to be loaded at startup."""
        return [] if self.is_on_demand else [name for name in self.paths if name not in self.models]

    def load_all(self) -> None:
        """Load every model, one after another. Raises the WeftError of one that fails."""
        for name in self.paths:
            self.load_model(name)

    def load_model(self, name: str) -> ServedModel:
        """Return the model, after loading it if necessary."""
        with self.lock:
            if name not in self.models:
                try:
                    self.models[name] = self.make_model(name)
                except WeftError as error:
                    self.failures[name] = str(error)
                    raise
            return self.models[name]

    def load_later(self, name: str) -> Future[ServedModel]:
        """Event loop: load a model in a thread. Concurrent calls share one future; after a failure,
        the next call tries again."""
        future = self.futures.get(name)
        if future is None or future.done():
            if self.loader is None:
                self.loader = ThreadPoolExecutor(1, "weft-on-demand")
            future = self.futures[name] = self.loader.submit(self.load_model, name)
        return future

    def make_model(self, name: str) -> ServedModel:
        """Load a model; closes it again if it cannot be served."""
        loaded = self.load(self.paths[name])
        try:
            return self.make(name, loaded)
        except BaseException:
            loaded.close()
            raise

    def resolve(self, name: str | None) -> str:
        """Resolve aliases and `:latest`; raises an ApiError 404 for an unknown name. None: the only
        model."""
        if name is None:
            return self.only_model()
        wanted = name.removesuffix(LATEST)
        wanted = self.aliases.get(name, self.aliases.get(wanted, wanted))
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

    def only_model(self) -> str:
        """The name of the model of requests that name none; an ApiError if there are several."""
        if len(self.paths) > 1:
            raise ApiError(
                400,
                "model is missing: several models are served. Name one of "
                f"{', '.join(self.names)}.",
                param="model",
            )
        return next(iter(self.paths))

    def get(self, name: str | None) -> ServedModel:
        """The loaded model of a name. Raises a NotLoadedError if it is loaded on demand and not
        loaded yet, an ApiError 503 while it loads at startup."""
        resolved = self.resolve(name)
        if resolved not in self.models:
            if self.is_on_demand:
                raise NotLoadedError(resolved)
            reason = self.failures.get(resolved, "it is being loaded. Try again in some seconds.")
            headers = {} if resolved in self.failures else {"retry-after": "2"}
            raise ApiError(503, f"model '{resolved}' is not ready: {reason}", headers=headers)
        return self.models[resolved]

    def close(self) -> None:
        """End the engines and their thread."""
        if self.loader is not None:
            self.loader.shutdown(cancel_futures=True)
        for served in self.models.values():
            served.loaded.close()
        if self.thread is not None:
            self.thread.close()
