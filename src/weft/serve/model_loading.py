"""Settings of the server -> a Service, whose models are loaded and warmed up one after another.

Imports torch, so server.py imports this module in a thread, after it has begun to listen.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from weft.core.config import read_text
from weft.core.errors import UsageError
from weft.core.registry import pick
from weft.engine.engine_thread import EngineThread
from weft.engine.loaded_model import LoadedModel, load
from weft.engine.request_builder import GenerationOptions
from weft.engine.worker_pool import freeze_gc
from weft.serve.api_keys import ApiKeys
from weft.serve.cache_keeping import CacheKeeper
from weft.serve.cache_shares import context_len, engine_config
from weft.serve.config import ServeConfig
from weft.serve.context import Service
from weft.serve.limits import Limits
from weft.serve.request_log import log_request
from weft.serve.served_model import ModelRegistry, ServedModel
from weft.serve.tool_formats import TOOL_FORMATS
from weft.text.languages import LanguagePair

log = logging.getLogger(__name__)

WARM_UP_TOKENS = 8
"""Fewer than a page, so that the warm-up leaves nothing in the prefix cache."""


def build_service(
    config: ServeConfig, paths: Mapping[str, str], keys: ApiKeys, is_on_demand: bool = False
) -> Service:
    """The state of a server whose models are not loaded yet."""
    if config.tool_format is not None:
        pick(TOOL_FORMATS, config.tool_format, "tool format")
    languages = languages_of(config, paths)
    engine, thread = engine_config(config, paths), EngineThread()
    template = None if config.chat_template is None else read_text(Path(config.chat_template))

    keeper = None if config.keep is None else CacheKeeper(Path(config.keep))

    def load_one(model: str) -> LoadedModel:
        loaded = load(model, config.device, engine=engine, thread=thread)
        if template is None:
            return loaded
        checkpoint = replace(loaded.checkpoint, chat_template=template)
        return LoadedModel(checkpoint, engine, thread=thread)

    def make(name: str, loaded: LoadedModel) -> ServedModel:
        served = ServedModel(
            name,
            loaded,
            config.tool_format,
            config.defaults,
            max_len=context_len(name, loaded, config.max_model_len),
            languages=languages.get(name),
        )
        if keeper is not None:
            keeper.add(served)  # before the warm-up, which may leave a source in the cache
        warm_up(served)
        served.use_huge_pages()
        if config.reserve:
            served.reserve()
        return served

    registry = ModelRegistry(paths, load_one, config.alias, make, is_on_demand, thread)
    limits = Limits(
        config.max_queued, config.max_queue_seconds, config.max_concurrent, config.max_output
    )
    return Service(registry, config, keys, limits, [log_request], keeper=keeper)


def languages_of(config: ServeConfig, paths: Mapping[str, str]) -> dict[str, LanguagePair]:
    """Languages that the settings give to models; a UsageError for a model that is not served."""
    for name in config.languages:
        if name not in paths:
            raise UsageError(
                f"--languages {name}={config.languages[name]}: '{name}' is not a served model. "
                f"Served are {', '.join(paths)}."
            )
    return config.language_pairs


def load_models(service: Service, report: Callable[[str], None]) -> None:
    """Load the models that are not loaded on demand; raises the WeftError of one that cannot be."""
    for name in service.models.loading:
        begin = time.perf_counter()
        service.models.load_model(name)
        report(f"loaded {name} in {time.perf_counter() - begin:.1f} s")
    freeze_gc()


def warm_up(served: ServedModel) -> None:
    """One forward pass or two: threads start, memory is assigned, weights are packed."""
    loaded = served.loaded
    if served.kind == "decoder":
        ids = [0] * min(WARM_UP_TOKENS, served.max_len - 1)
        for _ in loaded.stream(ids, GenerationOptions(max_tokens=1)):
            pass
    elif served.kind == "encoder-decoder":
        loaded.translate(["a"], max_tokens=1)
    else:
        loaded.embed(["a"])


def describe_models(service: Service) -> list[str]:
    """One line for each loaded model."""
    lines = []
    for name, served in service.models.models.items():
        line = f"{name}: {served.kind}, context length {served.max_len:,}"
        if served.kind != "encoder":  # which has no KV cache
            num_pages = served.engine.engine.kv_cache.pool.num_usable
            size = served.loaded.engine_config.page_size
            line += f", cache for {num_pages * size:,} tokens"
        lines.append(line)
    return lines
