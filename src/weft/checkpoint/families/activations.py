"""Activations by the names that `transformers` has for them <-> kinds of feed-forward layer."""

from __future__ import annotations

ACTIVATIONS = {
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
NAMES = {"gelu": "gelu", "relu": "relu", "silu": "silu", "gelu_tanh": "gelu_new"}
"""The way back: the name that most files have."""
