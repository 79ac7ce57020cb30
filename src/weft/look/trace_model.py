"""ModelConfig -> TraceModel, the description of the model in a trace."""

from __future__ import annotations

from collections import Counter

from weft.look.trace_data import TraceModel
from weft.models.build import AnyModel
from weft.models.config import ModelConfig
from weft.nn.packed_modules import packed_matrices


def trace_model(model: AnyModel, name: str = "") -> TraceModel:
    """What the model is."""
    config = model.config
    attention = config.attention
    stacks = ("encoder", "decoder") if config.kind == "encoder-decoder" else (config.kind,)
    pattern = attention.pattern
    return TraceModel(
        name=name,
        kind=config.kind,
        layers=tuple(config.layers_of(stack) for stack in stacks),  # type: ignore[arg-type]
        heads=attention.num_heads,
        kv_heads=attention.kv_heads,
        width=config.width,
        attention=attention.kind,
        position=config.position.kind,
        norm=f"{config.norm.kind}, {config.norm.placement}",
        vocab=config.vocab_size,
        dtype=str(model.head.weight.dtype).removeprefix("torch."),
        head_size=attention.query_size(config.width),
        feedforward=config.feedforward.kind,
        window=pattern.kv_window(0) if pattern.kind != "full" else None,
        weights=weight_format(model),
        pattern=pattern_name(config),
    )


def weight_format(model: AnyModel) -> str:
    """Number format of most packed weights; float32 if they are not quantized."""
    kinds = Counter(str(matrix.kind) for _, matrix in packed_matrices(model))
    return kinds.most_common(1)[0][0] if kinds else "float32"


def weight_notes(model: AnyModel) -> list[str]:
    """How the products with quantized weights were computed."""
    matrices = [matrix for _, matrix in packed_matrices(model) if matrix.scales is not None]
    if not matrices:
        return []
    is_int8 = any(matrix.int8_activations for matrix in matrices)
    inputs = "inputs rounded to int8" if is_int8 else "inputs in float32"
    return [f"weights are {weight_format(model)}; products with them as in serving, {inputs}"]


def pattern_name(config: ModelConfig) -> str:
    """The pattern of allowed keys: full, window 4096, window 4096 and full every 6th layer."""
    pattern = config.attention.pattern
    if pattern.kind == "full":
        return "full"
    size = f" {pattern.window}" if pattern.kind in ("window", "dilated", "global") else ""
    full = f", full every {pattern.full_every}" if pattern.full_every else ""
    return f"{pattern.kind}{size}{full}"
