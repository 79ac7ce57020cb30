"""The formula of a stage in one model: a config and the name of a stage -> text.

Formulas in stages.py hold for every model; here are those that depend on the settings: norms,
activations, QK-norm, RoPE, MLA, softcap, experts.
"""

from __future__ import annotations

from weft.look.stages import kind_of
from weft.models.config import ModelConfig
from weft.nn.config import MixtureOfExpertsConfig
from weft.nn.feedforward import KINDS
from weft.nn.positions.config import LearnedConfig, RotaryConfig, SinusoidalConfig


class Formulas:
    """Formulas of the stages of one model."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.is_latent = config.attention.kind == "mla"

    def formula(self, name: str) -> str:
        """The formula of a stage, by its full name."""
        stack, *rest = name.split(".")
        end = rest[-1]
        if end in ("norm", "norm_out"):
            return f"{self.config.norm.kind}({'out' if end == 'norm_out' else 'x'})"
        if len(rest) == 1:
            return self.of_stack(end) or kind_of(name).formula
        if len(rest) == 3 and rest[1] == "feedforward":
            return self.of_feedforward(int(rest[0]), end) or kind_of(name).formula
        if len(rest) == 3:
            return self.of_attention(end, rest[1] == "cross") or kind_of(name).formula
        return kind_of(name).formula

    def of_stack(self, end: str) -> str | None:
        embedding, position = self.config.embedding, self.config.position
        if end == "embedding":
            return "E[id] √d" if embedding.scale else "E[id]"
        if end == "input":
            added = isinstance(position, LearnedConfig | SinusoidalConfig)
            parts = ["E", *(["P"] if added else []), *(["S"] if embedding.segments else [])]
            total = " + ".join(parts)
            return f"{self.config.norm.kind}({total})" if embedding.norm else total
        return None

    def of_attention(self, end: str, is_cross: bool) -> str | None:
        attention = self.config.attention
        if end in ("q", "k"):
            return self.of_heads(end, is_cross)
        if end == "v" and self.is_latent:
            return "c_kv W_UV"
        if end == "residual":
            return self.residual
        if end == "scores":
            product = "QK^T/√d_k" if attention.scale is None else f"{attention.scale:g} QK^T"
            return product if attention.softcap is None else f"softcap({product})"
        return None

    def of_heads(self, end: str, is_cross: bool) -> str:
        """Of queries and keys."""
        letter, rotates = end.upper(), self.rotates and not is_cross
        if self.is_latent and end == "k":
            return "[c_kv W_UK; k_rope]"
        product = f"x W_{letter}"
        if self.is_latent:
            return f"[{product}; rotate({product})]" if rotates else product
        if self.config.attention.qk_norm:
            product = f"rmsnorm({product})"
        return f"rotate({product})" if rotates else product

    @property
    def rotates(self) -> bool:
        return isinstance(self.config.position, RotaryConfig)

    @property
    def residual(self) -> str:
        return "x + norm_out" if self.config.norm.placement == "both" else "x + out"

    def of_feedforward(self, layer: int, end: str) -> str | None:
        config = self.config.feedforward_of(layer)
        if end == "residual":
            return self.residual
        if isinstance(config, MixtureOfExpertsConfig):
            shared = "shared(x) + " if config.shared_experts else ""
            formulas = {"hidden": "silu(x W_gate) * x W_up", "out": f"{shared}sum w_e expert_e(x)"}
            return formulas.get(end)
        kind = KINDS[config.kind]
        gated = f"{kind.activation}(x W_gate) * x W_up"
        plain = f"{kind.activation}(x W_up)"
        return {"hidden": gated if kind.is_gated else plain}.get(end)
