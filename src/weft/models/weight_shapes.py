"""ModelConfig -> names and shapes of all parameters, without torch.

The names are those of `model.named_parameters()`: a tied weight occurs once, under its first name.
Building the model on torch's meta device gives the same shapes, but takes seconds (the import of
torch, and up to thousands of layers); a test compares both for all kinds of settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Literal

from weft.core.errors import ConfigError
from weft.models.config import ModelConfig
from weft.nn.attention.config import AttentionConfig
from weft.nn.config import FeedForwardConfig, MixtureOfExpertsConfig, MLPConfig, NormConfig

Shapes = dict[str, tuple[int, ...]]
MAX_BYTES = 2**63 - 1
"""Of one tensor: torch counts bytes in 64 bits."""


def weight_shapes(config: ModelConfig) -> Shapes:
    """All parameters; a ConfigError for sizes of which no model can be built."""
    shapes: Shapes = {}
    if config.kind == "encoder-decoder":
        shapes |= below("encoder", stack_shapes(config, "encoder"))
        shapes |= below("decoder", stack_shapes(config, "decoder"))
        if config.embedding.ties_source:
            del shapes["decoder.embedding.words.weight"]
    else:
        shapes |= below(config.kind, stack_shapes(config, config.kind))
    shapes |= below("head", head_shapes(config))
    if config.embedding.ties_output:
        del shapes["head.weight"]
    if config.pooler:
        shapes |= below("pooler.dense", linear(config.width, config.width, bias=True))
    check_bytes(config, shapes)
    return shapes


def check_bytes(config: ModelConfig, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise a ConfigError for a matrix that torch cannot describe."""
    if any(4 * prod(shape) > MAX_BYTES for shape in shapes.values()):
        raise ConfigError(
            [
                f"a {config.kind} of width {config.width} with these settings has a matrix of more "
                "than 2 ** 63 bytes. Use smaller sizes."
            ]
        )


def below(prefix: str, shapes: Mapping[str, tuple[int, ...]]) -> Shapes:
    return {f"{prefix}.{name}": shape for name, shape in shapes.items()}


def linear(inputs: int, outputs: int, bias: bool) -> Shapes:
    return {"weight": (outputs, inputs), **({"bias": (outputs,)} if bias else {})}


def norm_shapes(config: NormConfig, width: int) -> Shapes:
    return {"weight": (width,), **({"bias": (width,)} if config.has_bias else {})}


def stack_shapes(config: ModelConfig, side: Literal["encoder", "decoder"]) -> Shapes:
    """Embedding, position encodings, blocks and final norm of one stack."""
    width, place = config.width, config.position_shape(side)
    shapes: Shapes = {"embedding.words.weight": (config.vocab_size_of(side), width)}
    if config.embedding.segments:
        shapes["embedding.segments.weight"] = (config.embedding.segments, width)
    if config.embedding.norm:
        shapes |= below("embedding.norm", norm_shapes(config.norm, width))
    for name, position in (
        ("position", config.position),
        ("local_position", config.local_position),
    ):
        if position is not None:
            position.check_shape(place)
            shapes |= below(name, position.weight_shapes(place))
    has_source = side == "decoder" and config.kind == "encoder-decoder"
    for layer in range(config.layers_of(side)):
        shapes |= below(f"blocks.{layer}", block_shapes(config, layer, has_source))
    return shapes | (
        below("norm", norm_shapes(config.norm, width)) if config.has_final_norm else {}
    )


def block_shapes(config: ModelConfig, layer: int, has_source: bool) -> Shapes:
    """One layer: its sub-layers, and the norms of their residual paths."""
    width, path = config.width, residual_shapes(config.norm, config.width)
    attention = attention_shapes(config.attention, config.width)
    shapes = below("attention", attention) | below("attention_path", path)
    if has_source:
        shapes |= below("cross", attention) | below("cross_path", path)
    shapes |= below("feedforward", feedforward_shapes(config.feedforward_of(layer), width))
    return shapes | below("feedforward_path", path)


def residual_shapes(norm: NormConfig, width: int) -> Shapes:
    names = ("norm", "norm_out") if norm.placement == "both" else ("norm",)
    return {
        name: shape for one in names for name, shape in below(one, norm_shapes(norm, width)).items()
    }


def attention_shapes(config: AttentionConfig, width: int) -> Shapes:
    if config.kind == "mla":
        return latent_shapes(config, width)
    H, K, C = config.num_heads, config.kv_heads, config.size_of_head(width)
    shapes = below("qkv", linear(width, (H + 2 * K) * C, config.bias))
    shapes |= below("out", linear(H * C, width, config.has_out_bias))
    if config.qk_norm:
        shapes |= {"query_norm.weight": (C,), "key_norm.weight": (C,)}
    return shapes


def latent_shapes(config: AttentionConfig, width: int) -> Shapes:
    """MLA: queries are compressed where the settings ask for it."""
    H, rank = config.num_heads, config.latent.query_rank
    A, J, O, U = config.latent_sizes(width)  # noqa: E741  the letter key's own name
    if rank is None:
        shapes = below("query", linear(width, H * (J + O), bias=False))
    else:
        shapes = below("query.0", linear(width, rank, config.bias))
        shapes |= {"query.1.weight": (rank,), "query.2.weight": (H * (J + O), rank)}
    shapes |= below("kv_down", linear(width, A + O, config.bias))
    shapes |= {"kv_norm.weight": (A,), "kv_up.weight": (H * (J + U), A)}
    return shapes | below("out", linear(H * U, width, config.has_out_bias))


def feedforward_shapes(config: FeedForwardConfig, width: int) -> Shapes:
    inner = config.inner_width(width)
    if isinstance(config, MixtureOfExpertsConfig):
        return expert_shapes(config, width)
    if isinstance(config, MLPConfig):
        up = below("up", linear(width, inner, config.bias))
    else:
        up = below("gate_up", linear(width, 2 * inner, config.bias))
    return up | below("down", linear(inner, width, config.bias))


def expert_shapes(config: MixtureOfExpertsConfig, width: int) -> Shapes:
    E, inner, shared = config.num_experts, config.inner_width(width), config.shared_experts
    shapes: Shapes = {
        "gate_up_EFD": (E, 2 * inner, width),
        "down_EDF": (E, width, inner),
        "router.weight_ED": (E, width),
    }
    if shared:
        shapes |= below("shared.gate_up", linear(width, 2 * shared * inner, bias=False))
        shapes |= below("shared.down", linear(shared * inner, width, bias=False))
    return shapes


def head_shapes(config: ModelConfig) -> Shapes:
    """The LM head with its own table, tied or not."""
    vocab_size, width = config.vocab_size, config.width
    shapes = linear(width, vocab_size, config.head.bias)
    if config.head.transform:
        shapes |= below("transform.dense", linear(width, width, bias=True))
        shapes |= below("transform.norm", norm_shapes(config.norm, width))
    return shapes
