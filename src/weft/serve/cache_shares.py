"""`--cache` -> KV cache size of each served model.

    --cache 4           4 GiB for all models together, including those that are loaded later
    --cache auto        half of the memory that remains after the weights
    --cache 0           nothing is kept between requests; each model has 1 GiB for running requests

Shares are fixed and equal for all models with a KV cache (encoders have none), so that memory is
left for models that are loaded on demand. A share is an upper bound in bytes: if a sequence of the
model's maximum length does not fit, the model is served with a shorter context length.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from weft.checkpoint.description import describe
from weft.checkpoint.pulled_models import resolve
from weft.core.errors import UsageError, WeftError
from weft.core.memory import available_memory
from weft.engine.config import EngineConfig
from weft.engine.loaded_model import LoadedModel
from weft.engine.memory_budget import AUTO_SHARE, GIB, weight_bytes
from weft.engine.scheduling.admission import longest_sequence
from weft.serve.config import ServeConfig

log = logging.getLogger(__name__)

MIN_AUTO_GIB = 0.0625
"""Minimum share of a model with --cache auto. Less memory is an error when the model is loaded."""
MIN_LEN = 2
"""Minimum context length: one token of the prompt and one of the answer."""


def engine_config(config: ServeConfig, paths: Mapping[str, str]) -> EngineConfig:
    """The settings of each engine; `paths`: all models that may be loaded, by name."""
    share = cache_share(config.cache, paths)
    return EngineConfig(
        cache_gib=share,
        is_cache_limit=config.cache != 0 and share != "auto",
        prefix_cache="none" if config.cache == 0 else "radix",
        activations=config.activations,
    )


def cache_share(cache: float | str, paths: Mapping[str, str]) -> float | str:
    """GiB of each model's KV cache; "auto" for a single model, whose size is determined when it is
    loaded."""
    if cache == 0 or len(paths) == 1:
        return cache
    num_shares = max(1, sum(map(has_kv_cache, paths.values())))
    if not isinstance(cache, str):
        return cache / num_shares
    limit, weights = available_memory(), sum(weight_bytes(resolve(one)) for one in paths.values())
    free = GIB * num_shares if limit is None else AUTO_SHARE * (limit.available - weights)
    return max(MIN_AUTO_GIB, free / GIB / num_shares)


def has_kv_cache(model: str) -> bool:
    """Whether a model needs a share, by its headers; True if they cannot be read."""
    try:
        return describe(model).config.kind != "encoder"
    except WeftError:
        return True


def context_len(name: str, loaded: LoadedModel, asked: int | None) -> int | None:
    """The requested context length, or a lower one that fits into the model's share; None: that of
    the model. Raises a UsageError if not even MIN_LEN tokens fit."""
    scheduler, limit = loaded.client.engine.scheduler, loaded.model.config.max_cached_len
    room = longest_sequence(scheduler.config, scheduler.kv_cache)
    if room >= min(asked or limit, limit):
        return asked
    share = loaded.engine_config.cache_gib
    if room < MIN_LEN:
        raise UsageError(
            f"the KV cache of model '{name}' has {share} GiB, which is too little for a sequence "
            f"of {MIN_LEN} tokens. Raise --cache, or serve fewer models."
        )
    log.warning(
        "model=%s context_length=%d asked=%d reason='its share of --cache is %s GiB'",
        *(name, room, asked or limit, share if isinstance(share, str) else f"{share:.3g}"),
    )
    return room
