"""The stages of a trace: name -> axes, formula and inputs. Names are stable within weft.trace/1.

S = encoder | decoder; i = layer from 0; a stage exists only where the model has it.

S.ids                         [token]              ids of the tokens
S.embedding                   [token, dim]         rows of the word table, scaled
S.position                    [token, dim]         added vectors (sinusoidal, learned)
S.segment                     [token, dim]         added vectors of segment types (BERT)
S.angles, S.local_angles      [token, pair]        RoPE angles; local: layers with a window
S.input                       [token, dim]         input of layer 0: the sum, normalized if so

S.i.attention.norm            [token, dim]         norm (before the product, or after the sum)
S.i.attention.q_projected     [head, query, dim]   x W_Q, where QK-norm or RoPE change it
S.i.attention.k_projected     [kv_head, key, dim]  x W_K, likewise
S.i.attention.q               [head, query, dim]   queries as in the product with the keys
S.i.attention.k               [kv_head, key, dim]  keys; query head h reads h // (heads / kv_heads)
S.i.attention.v               [kv_head, key, dim]  values
S.i.attention.c_kv            [key, dim]           MLA: latent rows; k and v are made from them,
S.i.attention.k_rope          [key, dim]           MLA: and the part of the key with a position
S.i.attention.bias            [head, query, key]   relative positions (Shaw, T5, ALiBi)
S.i.attention.scores          [head, query, key]   before the mask, bias included
S.i.attention.mask            [query, key]         1: may attend, 0: may not
S.i.attention.weights         [head, query, key]   softmax of the allowed scores
S.i.attention.heads           [head, query, dim]   output of each head, before W_O
S.i.attention.out             [token, dim]         heads side by side, times W_O
S.i.attention.norm_out        [token, dim]         placement both: norm of out
S.i.attention.residual        [token, dim]         x + out (placement after: before the norm)
decoder.i.cross.*             the same for cross-attention: queries tgt, keys src
S.i.feedforward.norm, .out, .norm_out, .residual   as in attention
S.i.feedforward.gate          [token, unit]        x W_gate, gated kinds
S.i.feedforward.up            [token, unit]        x W_up
S.i.feedforward.hidden        [token, unit]        input of W_down; of shared experts for MoE
S.i.feedforward.experts       [token, rank]        ids of the selected experts, best first
S.i.feedforward.expert_weights [token, rank]       their weights
S.i.feedforward.expert_out    [token, rank, dim]   their outputs, before the weights
S.i.output                    [token, dim]         output of the layer
S.norm                        [token, dim]         final norm
S.logits                      [token, vocab]       logits at each position
S.logits_delta                [token, vocab]       with ablated heads minus without
S.rollout                     [query, key]         attention rollout (Abnar & Zuidema 2020)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class StageKind(NamedTuple):
    """What all stages of a name have in common. Inputs are relative: `.x` is in the same part of
    the layer, `x` in the stack, `@` the input of that part, `in` what its products read: `@`
    itself or, with the norm before, the norm of it; `a|b`: the first of these that exists."""

    op: str
    axes: tuple[str, ...]
    formula: str
    inputs: tuple[str, ...] = ()


VECTORS = ("token", "dim")
UNITS = ("token", "unit")
PAIRS = ("head", "query", "key")

STACK_STAGES: dict[str, StageKind] = {
    "ids": StageKind("tokenize", ("token",), "id"),
    "embedding": StageKind("lookup", VECTORS, "E[id] scale", ("ids",)),
    "position": StageKind("position", VECTORS, "P[position]"),
    "segment": StageKind("lookup", VECTORS, "segments[type]"),
    "angles": StageKind("rotary angles", ("token", "pair"), "position * frequency"),
    "local_angles": StageKind("rotary angles", ("token", "pair"), "position * frequency"),
    "input": StageKind("add", VECTORS, "E + P", ("embedding", "position", "segment")),
    "norm": StageKind("norm", VECTORS, "norm(x)", ("last",)),
    "logits": StageKind("x@W.T", ("token", "vocab"), "x W_vocab^T", ("norm", "last")),
    "logits_delta": StageKind("subtract", ("token", "vocab"), "logits(ablated) - logits"),
    "rollout": StageKind("rollout", ("query", "key"), "prod_l norm(mean_h A_l + I)"),
}
"""Once per stack."""

LAYER_STAGES: dict[str, StageKind] = {
    "output": StageKind("layer", VECTORS, "x", ("@",)),
}
"""Once per layer."""

SHARED_STAGES: dict[str, StageKind] = {
    "norm": StageKind("norm", VECTORS, "norm(x)", ("normed",)),
    "norm_out": StageKind("norm", VECTORS, "norm(out)", (".out",)),
    "residual": StageKind("add", VECTORS, "x + out", ("@", ".norm_out|.out")),
}
"""Of attention, cross-attention and feed-forward."""

ATTENTION_STAGES: dict[str, StageKind] = {
    **SHARED_STAGES,
    "q_projected": StageKind("x@W_Q", ("head", "query", "dim"), "x W_Q", ("in",)),
    "k_projected": StageKind("x@W_K", ("kv_head", "key", "dim"), "x W_K", ("in",)),
    "c_kv": StageKind("x@W_down", ("key", "dim"), "norm(x W_DKV)", ("in",)),
    "k_rope": StageKind("x@W_rope", ("key", "dim"), "rotate(x W_KR)", ("in",)),
    "q": StageKind("query", ("head", "query", "dim"), "x W_Q", (".q_projected|in",)),
    "k": StageKind("key", ("kv_head", "key", "dim"), "x W_K", (".k_projected|.c_kv|in", ".k_rope")),
    "v": StageKind("x@W_V", ("kv_head", "key", "dim"), "x W_V", (".c_kv|in",)),
    "bias": StageKind("position bias", PAIRS, "bias[head, query - key]"),
    "scores": StageKind("q@k.T*scale", PAIRS, "QK^T/√d_k", (".q", ".k", ".bias")),
    "mask": StageKind("mask", ("query", "key"), "allowed"),
    "weights": StageKind("softmax", PAIRS, "softmax(scores + mask)", (".scores", ".mask")),
    "heads": StageKind("weights@v", ("head", "query", "dim"), "A V", (".weights", ".v")),
    "out": StageKind("concat@W_O", VECTORS, "concat(heads) W_O", (".heads",)),
}

FEEDFORWARD_STAGES: dict[str, StageKind] = {
    **SHARED_STAGES,
    "gate": StageKind("x@W_gate", UNITS, "x W_gate", ("in",)),
    "up": StageKind("x@W_up", UNITS, "x W_up", ("in",)),
    "hidden": StageKind("activation", UNITS, "act(x W_up)", (".gate", ".up")),
    "experts": StageKind("top-k", ("token", "rank"), "top-k experts", ("in",)),
    "expert_weights": StageKind("router", ("token", "rank"), "router(x)", (".experts",)),
    "expert_out": StageKind("experts", ("token", "rank", "dim"), "expert_e(x)", (".experts",)),
    "out": StageKind(
        "hidden@W_down", VECTORS, "hidden W_down", (".hidden", ".expert_out", ".expert_weights")
    ),
}

SUBLAYERS: dict[str, dict[str, StageKind]] = {
    "attention": ATTENTION_STAGES,
    "cross": ATTENTION_STAGES,
    "feedforward": FEEDFORWARD_STAGES,
}


class Wiring:
    """The inputs of the stages that a trace has."""

    def __init__(self, names: Iterable[str], is_norm_after: bool) -> None:
        self.names, self.is_norm_after = list(names), is_norm_after
        self.existing = set(self.names)

    def inputs(self, name: str) -> tuple[str, ...]:
        """The full names of the stages that a stage is computed from."""
        names = []
        for references in kind_of(name).inputs:
            resolved = [self.resolve(name, one) for one in references.split("|")]
            names += [one for one in resolved if one in self.existing][:1]
        return tuple(dict.fromkeys(names))

    def resolve(self, name: str, reference: str) -> str:
        stack, *rest = name.split(".")
        if len(rest) == 1:
            return self.last_output(stack) if reference == "last" else f"{stack}.{reference}"
        layer, part = int(rest[0]), rest[1] if len(rest) == 3 else ""
        prefix, before = f"{stack}.{layer}.{part}", self.part_input(stack, layer, part)
        if reference == "in":
            if part == "cross" and rest[2] in ("k", "v", "k_projected", "c_kv", "k_rope"):
                return self.stack_output("encoder")
            return before if self.is_norm_after else f"{prefix}.norm"
        if reference == "normed":
            return f"{prefix}.residual" if self.is_norm_after else before
        return before if reference == "@" else prefix + reference

    def part_input(self, stack: str, layer: int, part: str) -> str:
        """What the part before gives; before all parts: the output of the layer before."""
        order = ["attention", "cross", "feedforward", ""]
        end = "norm" if self.is_norm_after else "residual"
        for one in reversed(order[: order.index(part)]):
            if f"{stack}.{layer}.{one}.residual" in self.existing:
                return f"{stack}.{layer}.{one}.{end}"
        return f"{stack}.{layer - 1}.output" if layer else f"{stack}.input"

    def last_output(self, stack: str) -> str:
        outputs = [name for name in self.names if name.startswith(f"{stack}.")]
        return next((n for n in reversed(outputs) if n.endswith(".output")), f"{stack}.input")

    def stack_output(self, stack: str) -> str:
        norm = f"{stack}.norm"
        return norm if norm in self.existing else self.last_output(stack)


def kind_of(name: str) -> StageKind:
    """The kind of a stage by its full name."""
    parts = name.split(".")
    if len(parts) == 2:
        return STACK_STAGES[parts[1]]
    if len(parts) == 3:
        return LAYER_STAGES[parts[2]]
    return SUBLAYERS[parts[2]][parts[3]]
