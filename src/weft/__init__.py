"""Weft: train, inspect and serve Transformer models.

The packages, in the order of the data flow:

    core/       settings, errors, tensor shapes, the input of a forward pass, KV specifications
    text/       text <-> token ids; corpora -> batches
    native/     compiled kernels: C++ sources, packed weights, the compiled stack
    nn/         layers: embedding, positions, attention, norm, feed-forward, block, LM head
    models/     encoder, decoder and encoder-decoder, built from the layers
    cache/      KV cache: pages, page tables, prefix caches, encoder cache
    sampling/   logits -> next token
    checkpoint/ models <-> files: Weft folders, Hugging Face folders, GGUF
    training/   a recipe and text files -> a model
    engine/     inference: requests, scheduler, model runner, sampling, beam search
    serve/      HTTP: the protocols of OpenAI, Anthropic, Ollama and LibreTranslate
    look/       traces of forward passes, and their views
    demo/       the task of `weft demo`: dates in 30 languages -> ISO dates
    bench/      benchmarks, compared with other systems
    cli/        the program `weft`, one file per command
    model       `weft.load` and its result, `Model`: inference and traces

`import weft` is fast: each public name is imported on first use, and torch with it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from weft.core.openmp import prepare_openmp

if TYPE_CHECKING:
    from weft.core.errors import ConfigError as ConfigError
    from weft.core.errors import DataError as DataError
    from weft.core.errors import EngineError as EngineError
    from weft.core.errors import UsageError as UsageError
    from weft.core.errors import WeftError as WeftError
    from weft.core.forward_batch import ForwardBatch as ForwardBatch
    from weft.engine.async_engine import AsyncEngine as AsyncEngine
    from weft.engine.client import Completion as Completion
    from weft.engine.client import Translation as Translation
    from weft.engine.config import EngineConfig as EngineConfig
    from weft.engine.engine import Engine as Engine
    from weft.engine.engine_thread import EngineThread as EngineThread
    from weft.engine.loaded_model import LoadedModel as LoadedModel
    from weft.engine.request import GenerationRequest as GenerationRequest
    from weft.engine.request import RequestOutput as RequestOutput
    from weft.engine.worker_pool import WorkerPool as WorkerPool
    from weft.look.attention_weights import self_attention as self_attention
    from weft.look.recorder import trace_units as trace_units
    from weft.look.trace import Trace as Trace
    from weft.model import Model as Model
    from weft.model import load as load
    from weft.models.build import build_model as build_model
    from weft.models.config import ModelConfig as ModelConfig
    from weft.nn.packed_modules import unpack_model as unpack_model
    from weft.sampling.logits_processors import SamplingRow as SamplingRow
    from weft.sampling.params import SamplingParams as SamplingParams
    from weft.sampling.sampler import sample as sample
    from weft.text.batching import collate as collate
    from weft.text.tokenizer import Tokenizer as Tokenizer
    from weft.training.run import train as train

prepare_openmp()  # before torch is imported, which reads the environment once

__version__ = "0.1.0.dev0"

PUBLIC = {
    "AsyncEngine": "weft.engine.async_engine",
    "Completion": "weft.engine.client",
    "ConfigError": "weft.core.errors",
    "DataError": "weft.core.errors",
    "Engine": "weft.engine.engine",
    "EngineConfig": "weft.engine.config",
    "EngineError": "weft.core.errors",
    "EngineThread": "weft.engine.engine_thread",
    "ForwardBatch": "weft.core.forward_batch",
    "GenerationRequest": "weft.engine.request",
    "LoadedModel": "weft.engine.loaded_model",
    "Model": "weft.model",
    "ModelConfig": "weft.models.config",
    "RequestOutput": "weft.engine.request",
    "SamplingParams": "weft.sampling.params",
    "SamplingRow": "weft.sampling.logits_processors",
    "Tokenizer": "weft.text.tokenizer",
    "Trace": "weft.look.trace",
    "Translation": "weft.engine.client",
    "UsageError": "weft.core.errors",
    "WeftError": "weft.core.errors",
    "WorkerPool": "weft.engine.worker_pool",
    "build_model": "weft.models.build",
    "collate": "weft.text.batching",
    "load": "weft.model",
    "sample": "weft.sampling.sampler",
    "self_attention": "weft.look.attention_weights",
    "trace_units": "weft.look.recorder",
    "train": "weft.training.run",
    "unpack_model": "weft.nn.packed_modules",
}
"""The public API: each name and the module that defines it (docs/api.md). Modules may change."""

__all__ = [*PUBLIC, "__version__"]


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name not in PUBLIC:
        raise AttributeError(f"module 'weft' has no attribute '{name}'")
    value = getattr(import_module(PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC})
