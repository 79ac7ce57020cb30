"""Served models: names -> loaded models with their engines.

    models = ModelRegistry({"smollm2": "smollm2", "dates": "runs/demo"}, load, {"gpt-4o": "dates"})
    models.get("smollm2")           a ServedModel; ApiError 404 or 503 if there is none

Names with `:latest`, as Ollama's clients send them, are the same as without. Loading takes place in
a thread. While the models of the command line load, requests for them are answered with 503 and
what is loading; a request for a model that is loaded on demand waits for it (app.py). Such models
are loaded in a thread of their own, and no other thread waits meanwhile.
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
"""A path or name -> a model that is ready to serve. Raises a WeftError."""


class NotLoadedError(Exception):
    """The model of a request is loaded on demand, and is not loaded yet."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class ServedModel:
    """A loaded model under a name."""

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
        """`tool_format`: a name in TOOL_FORMATS, None: found by the chat template. `defaults`:
        sampling keywords for requests that leave them out; they come before the checkpoint's.
        `max_len`: lower than the model's. `languages`: codes of source and target, None: those of
        the checkpoint."""
        self.name, self.loaded = name, loaded
        self.max_len = checked_len(name, max_len, loaded.model.config.max_cached_len)
        """Prompt and new tokens together."""
        self.defaults = loaded.generation_config.sampling_keywords(defaults or {})
        self.languages = checked_languages(name, loaded, languages)
        """Codes of source and target of a translation model; None: not known."""
        self.created = int(time.time()) if created is None else created
        """Seconds since 1970, as OpenAI's list of models has them."""
        self.reserving: Future[None] | None = None
        """Done when the memory of the KV cache is assigned; None: that is not asked for."""
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
        """Assign the memory of the KV cache between the steps of the engine, from now on."""
        store = self.engine.engine.runner.store
        if store is not None:
            self.reserving = self.engine.run_units(store.reserve_units())

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
    """The context length; a UsageError if more is asked for than the model has."""
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
        """`paths`: name -> what `weft.load` takes; `aliases`: another name -> name.
        `is_on_demand`: a model is loaded at its first request. `thread`: that of all engines, which
        ends with `close`; None: each has its own."""
        self.is_on_demand, self.thread = is_on_demand, thread
        self.paths, self.aliases = dict(paths), dict(aliases or {})
        self.load, self.make = load, make
        self.models: dict[str, ServedModel] = {}
        self.failures: dict[str, str] = {}
        """Models that could not be loaded, with the sentence that says why."""
        self.lock = threading.Lock()
        self.loader: ThreadPoolExecutor | None = None
        """Loads models on demand, one at a time."""
        self.futures: dict[str, Future[ServedModel]] = {}
        """Of the models that it loads or will load."""
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
        """Names of models that are not loaded yet, and will be without a request."""
        return [] if self.is_on_demand else [name for name in self.paths if name not in self.models]

    def load_all(self) -> None:
        """Load every model, one after another. Raises the WeftError of one that fails."""
        for name in self.paths:
            self.load_model(name)

    def load_model(self, name: str) -> ServedModel:
        """The model, loaded if it is not."""
        with self.lock:
            if name not in self.models:
                try:
                    self.models[name] = self.make_model(name)
                except WeftError as error:
                    self.failures[name] = str(error)
                    raise
            return self.models[name]

    def load_later(self, name: str) -> Future[ServedModel]:
        """Event loop: load a model in a thread. All who wait for it share one future; a load that
        has failed is repeated by the next call."""
        future = self.futures.get(name)
        if future is None or future.done():
            if self.loader is None:
                self.loader = ThreadPoolExecutor(1, "weft-on-demand")
            future = self.futures[name] = self.loader.submit(self.load_model, name)
        return future

    def make_model(self, name: str) -> ServedModel:
        """Load a model; nothing is left of one that cannot be served."""
        loaded = self.load(self.paths[name])
        try:
            return self.make(name, loaded)
        except BaseException:
            loaded.close()
            raise

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
        """The model that a request means, which is loaded. A NotLoadedError if it has to be."""
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
