"""Memory of an engine: weights, KV cache and workspace, compared with what is available.

The kernel kills a process that exceeds the limit of its control group without a message, possibly
after minutes, because the memory of the KV cache is allocated as it is used. So memory is checked
at the start: by `check_weights` before weights are read, with the sizes in their headers, and by
`cache_pages` when the engine is created.
"""

from __future__ import annotations

from pathlib import Path

import torch

from weft.checkpoint.description import FORMATS, find_format
from weft.checkpoint.gguf.loaded_size import loaded_size
from weft.checkpoint.tensor_source import can_pack_quantized
from weft.core.errors import UsageError, WeftError
from weft.core.memory import MemoryLimit, available_memory
from weft.engine.config import EngineConfig
from weft.models.config import ModelConfig
from weft.models.cost import cost_of

AUTO_SHARE = 0.5
"""Share of the available memory that cache_gib = auto uses, and the maximum for the pages of the
longest sequence; the rest is for other processes and for errors of the estimate."""
NUMBERS_PER_WIDTH = 16
"""Numbers stored per token in a step, as a multiple of the width: queries, keys, values, a gated
feed-forward layer of four times the width, and copies."""
GIB, MIN_PAGES = 1 << 30, 4


def workspace_bytes(model: ModelConfig, config: EngineConfig) -> int:
    """Bytes of the workspace of a full step: hidden states of its tokens, and logits of all
    sequences."""
    hidden = max(config.token_budget, config.encoder_budget) * NUMBERS_PER_WIDTH * model.width
    return 4 * (hidden + min(config.max_running, config.token_budget) * model.vocab_size)


def check_weights(
    path: Path,
    config: EngineConfig,
    dtype: torch.dtype = torch.float32,
    limit: MemoryLimit | None = None,
) -> None:
    """Raise a UsageError if the weights at a path, which are not in memory yet, do not fit next to
    the KV cache and the workspace; `limit` None: that of this process."""
    limit = limit or available_memory()
    size = model_size(path, dtype)
    if limit is None or size is None:
        return
    weights, model = size
    workspace = workspace_bytes(model, config)
    is_fixed = config.cache_gib != "auto" and model.kind != "encoder"
    cache = int(float(config.working_gib) * GIB) if is_fixed else 0
    if weights + cache + workspace > limit.available:
        raise too_large(limit, cache, workspace, weights)


def weight_bytes(path: Path, dtype: torch.dtype = torch.float32) -> int:
    """Bytes of the weights at a path when loaded on the CPU, from its headers; 0 if unknown."""
    size = model_size(path, dtype)
    return 0 if size is None else size[0]


def model_size(path: Path, dtype: torch.dtype) -> tuple[int, ModelConfig] | None:
    """Memory of the weights at a path, and the settings of their model. Quantized matrices that the
    kernels can multiply by stay quantized, all others become `dtype`. None if there is no model, or
    none that can be read: loading it says why."""
    try:
        name = find_format(path)
        if name == "gguf":
            can_pack = can_pack_quantized(torch.device("cpu"), dtype)
            return loaded_size(path, dtype.itemsize, can_pack)
        if name is None:
            return None
        _, model = FORMATS[name].describe_model(path)
    except (WeftError, OSError):
        return None
    return cost_of(model).parameters * dtype.itemsize, model


def cache_pages(
    model: ModelConfig, config: EngineConfig, page_bytes: int, min_pages: int, device: torch.device
) -> int:
    """Pages of the KV cache: those of cache_gib, or the `min_pages` of a sequence of the maximum
    length if they are more (unless is_cache_limit), up to AUTO_SHARE of the available memory. A
    UsageError if the pages of cache_gib do not fit, or are fewer than `MIN_PAGES`."""
    limit, size = device_memory(device), config.working_gib
    if config.is_cache_limit and size != "auto":
        min_pages = limited_pages(size, page_bytes)
    if limit is None:
        cache = GIB if size == "auto" else int(size * GIB)
        return max(min_pages, cache // page_bytes)
    workspace = workspace_bytes(model, config)
    free = limit.available - workspace
    cache = int(AUTO_SHARE * free if size == "auto" else size * GIB)
    if cache > free or free < 0:
        raise too_large(limit, max(0, cache), workspace)
    most = int(AUTO_SHARE * free) // page_bytes
    return max(MIN_PAGES, cache // page_bytes, min(min_pages, most))


def checked_pages(num_pages: int, page_bytes: int, device: torch.device) -> int:
    """The number of pages; a UsageError if there is no memory for them."""
    limit = device_memory(device)
    if limit is not None and num_pages * page_bytes > limit.available:
        raise UsageError(
            f"num_pages is {num_pages - 1:,}, which needs {gib(num_pages * page_bytes)}, but only "
            f"{gib(limit.available)} are left of {limit.name}. Lower num_pages, or free memory."
        )
    return num_pages


def limited_pages(cache_gib: float, page_bytes: int) -> int:
    """Pages of a cache that must not be exceeded; a UsageError if they are too few."""
    cache = int(cache_gib * GIB)
    if cache < MIN_PAGES * page_bytes:
        raise UsageError(
            f"the KV cache may have {cache:,} bytes, but {MIN_PAGES} pages of this model need "
            f"{MIN_PAGES * page_bytes:,}. Raise cache_gib (--cache, which all served models share)."
        )
    return cache // page_bytes


def device_memory(device: torch.device) -> MemoryLimit | None:
    if device.type == "cuda":
        return MemoryLimit(torch.cuda.mem_get_info(device)[0], f"the free memory of {device}")
    return available_memory() if device.type == "cpu" else None


def too_large(limit: MemoryLimit, cache: int, workspace: int, weights: int = 0) -> UsageError:
    """The error for an engine that does not fit."""
    parts = {"weights": weights, "KV cache": cache, "workspace": workspace}
    listed = ", ".join(f"{gib(size)} of {name}" for name, size in parts.items() if size)
    left = limit.available - weights - workspace
    advice = "Use a smaller model, or free memory."
    if left > 0:
        size = f"{left / GIB * 0.9:.2g}"
        advice = f"Set cache_gib (--cache) to {size} or less, or to auto, or free memory."
    return UsageError(
        f"the engine needs {gib(weights + cache + workspace)} ({listed}), but only "
        f"{gib(limit.available)} are left of {limit.name}. {advice}"
    )


def gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.2f} GiB"
