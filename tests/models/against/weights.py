"""Weights of a `transformers` model under our names: what the tests in this folder load into a
Weft model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

State = dict[str, Tensor]


def load(model: nn.Module, state: State) -> nn.Module:
    """Every name used, none left over; in eval mode."""
    model.load_state_dict(state, strict=True)
    return model.eval()


def shake(model: nn.Module, seed: int = 0) -> nn.Module:
    """Give every parameter random values, so that no zero bias or unit norm hides a mistake."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.1)
    return model.eval()


def take(state: State, ours: str, theirs: str, source: State, *, transpose: bool = False) -> None:
    """Copy weight and, where there is one, bias of one layer."""
    for part in ("weight", "bias"):
        if f"{theirs}.{part}" in source:
            tensor = source[f"{theirs}.{part}"]
            state[f"{ours}.{part}"] = tensor.T if transpose and tensor.ndim == 2 else tensor


def stack(state: State, ours: str, theirs: list[str], source: State) -> None:
    """Copy several layers, one below the other, into one fused layer."""
    for part in ("weight", "bias"):
        if f"{theirs[0]}.{part}" in source:
            state[f"{ours}.{part}"] = torch.cat([source[f"{name}.{part}"] for name in theirs])


def llama_state(source: State, num_layers: int, *, tied: bool = False) -> State:
    """Names of the Llama family: Llama, Mistral and others of the same layout."""
    state: State = {}
    take(state, "decoder.embedding.words", "model.embed_tokens", source)
    take(state, "decoder.norm", "model.norm", source)
    take(state, "head", "model.embed_tokens" if tied else "lm_head", source)
    for i in range(num_layers):
        ours, theirs = f"decoder.blocks.{i}", f"model.layers.{i}"
        names = [f"{theirs}.self_attn.{part}_proj" for part in "qkv"]
        stack(state, f"{ours}.attention.qkv", names, source)
        take(state, f"{ours}.attention.out", f"{theirs}.self_attn.o_proj", source)
        take(state, f"{ours}.attention_path.norm", f"{theirs}.input_layernorm", source)
        take(state, f"{ours}.feedforward_path.norm", f"{theirs}.post_attention_layernorm", source)
        gated(state, f"{ours}.feedforward", f"{theirs}.mlp", source)
    return state


def gated(state: State, ours: str, theirs: str, source: State) -> None:
    """A gated feed-forward layer."""
    stack(state, f"{ours}.gate_up", [f"{theirs}.gate_proj", f"{theirs}.up_proj"], source)
    take(state, f"{ours}.down", f"{theirs}.down_proj", source)
