"""Weft turns text into a Transformer that you can train, see through and serve.

The tour: read the rooms in the order in which the data walks through them.

    core/       words that every room shares: shapes, batches, stored rows, settings, errors
    text/       text <-> ids, and corpora -> batches
    native/     compiled kernels: C++ sources, packed weights
    nn/         the layers: embedding, positions, attention, norm, feed-forward, block, head
    models/     encoder, decoder and both, put together from those layers
    cache/      what attention keeps of the tokens that came before
    sampling/   logits -> the next token
    checkpoint/ a model <-> files on disk
    training/   a recipe and text files -> a model
    engine/     a loaded model, and what can be asked of it
    look/       where attention looks, shown
    demo/       the built-in task: dates in 30 languages -> ISO dates
    bench/      what it costs, measured
    cli/        the program `weft`, one file a command

`import weft` is cheap: each public name below is imported when it is first used, and torch with it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.engine.load import load as load
    from weft.models.build import build_model as build_model
    from weft.models.config import ModelConfig as ModelConfig
    from weft.text.tokenizer import Tokenizer as Tokenizer
    from weft.training.run import train as train

__version__ = "0.1.0.dev0"

PUBLIC = {
    "ModelConfig": "weft.models.config",
    "Tokenizer": "weft.text.tokenizer",
    "build_model": "weft.models.build",
    "load": "weft.engine.load",
    "train": "weft.training.run",
}
"""What we promise: each public name and the module that holds it. The rest may move."""

__all__ = [*PUBLIC, "__version__"]


def __getattr__(name: str) -> Any:
    """A public name, imported on first use (PEP 562) and remembered."""
    if name not in PUBLIC:
        raise AttributeError(f"module 'weft' has no attribute '{name}'")
    value = getattr(import_module(PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC})
