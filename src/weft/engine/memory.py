"""A model and the engine's settings -> its pages: their numbers (Memory) and rows (PageStore)."""

from __future__ import annotations

import torch

from weft.cache import PREFIX_CACHES
from weft.cache.kv_cache_manager import KVCacheManager
from weft.cache.kv_groups import KVCacheLayout
from weft.cache.kv_store import KVStore
from weft.cache.page_pool import PagePool
from weft.core.choices import pick
from weft.core.device import device_of, dtype_of
from weft.engine.config import EngineConfig
from weft.models.build import Model


def make_memory(model: Model, config: EngineConfig) -> tuple[KVCacheManager, KVStore | None]:
    """Without a store where a model keeps no rows."""
    layout = KVCacheLayout.of(model.kv_specs())
    store = make_store(model, layout, config) if layout.groups else None
    pool = PagePool(2 if store is None else store.num_pages, config.page_size)
    return KVCacheManager(layout, pool, pick(PREFIX_CACHES, config.prefix_cache, "cache")), store


def make_store(model: Model, layout: KVCacheLayout, config: EngineConfig) -> KVStore:
    """As many pages as the cache's memory holds."""
    device, dtype = device_of(model), dtype_of(model)
    specs = model.kv_specs()
    row = specs[0].bytes_per_token(dtype) * layout.num_layers_per_group
    longest = -(-model.config.max_cached_len // config.page_size) * len(layout.groups)
    # one sequence of any length always fits, whatever it costs: memory is taken as it is used
    num_pages = max(2 + 2 * longest, int(config.cache_gib * 2**30) // (row * config.page_size))
    with torch.inference_mode(False):
        store = KVStore(specs, layout.layer_locations, num_pages, config.page_size, device, dtype)
        if config.reserve:
            store.reserve()
        return store
