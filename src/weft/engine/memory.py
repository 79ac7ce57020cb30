"""A model and the engine's settings -> its pages: their numbers (Memory) and rows (PageStore)."""

from __future__ import annotations

import torch

from weft.cache import PREFIX_CACHES
from weft.cache.layout import Layout
from weft.cache.memory import Memory
from weft.cache.pages import PagePool
from weft.cache.store import PageStore
from weft.core.choices import pick
from weft.engine.settings import EngineConfig
from weft.models.build import Model


def make_memory(model: Model, config: EngineConfig) -> tuple[Memory, PageStore | None]:
    """Without a store where a model keeps no rows."""
    layout = Layout.of(model.kv_specs())
    store = make_store(model, layout, config) if layout.stripes else None
    pool = PagePool(2 if store is None else store.num_pages, config.page_size)
    return Memory(layout, pool, pick(PREFIX_CACHES, config.prefix_cache, "cache")), store


def make_store(model: Model, layout: Layout, config: EngineConfig) -> PageStore:
    """As many pages as the cache's memory holds."""
    first = next(model.parameters())
    specs = model.kv_specs()
    row = specs[0].bytes_per_token(first.dtype) * layout.num_layers_per_stripe
    longest = -(-model.config.max_len // config.page_size) * len(layout.stripes)
    # one sequence of any length always fits, whatever it costs: memory is taken as it is used
    num_pages = max(2 + 2 * longest, int(config.cache_gib * 2**30) // (row * config.page_size))
    with torch.inference_mode(False):
        store = PageStore(
            specs, layout.places, num_pages, config.page_size, first.device, first.dtype
        )
        if config.reserve:
            store.reserve()
        return store
