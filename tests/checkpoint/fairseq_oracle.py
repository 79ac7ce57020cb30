"""fairseq's transformer in plain functions, written from its formulas and from nothing of ours:
what our import of its checkpoints is compared with. Sources are padded on the left, as there."""

from __future__ import annotations

import math
from argparse import Namespace

import torch
import torch.nn.functional as F
from torch import Tensor

State = dict[str, Tensor]
PAD = 1
ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "swish": F.silu}


def arguments(**changes: object) -> Namespace:
    """Settings as fairseq keeps them."""
    result: dict[str, object] = {"arch": "transformer", "activation_fn": "relu", "dropout": 0.3}
    result |= {"encoder_layers": 2, "decoder_layers": 3, "max_source_positions": 64}
    result |= {"max_target_positions": 64, "adaptive_softmax_cutoff": None}
    for side in ("encoder", "decoder"):
        result |= {f"{side}_embed_dim": 24, f"{side}_ffn_embed_dim": 40}
        result |= {f"{side}_attention_heads": 3, f"{side}_normalize_before": True}
        result |= {f"{side}_learned_pos": False}
    result |= {"share_decoder_input_output_embed": True, "share_all_embeddings": False}
    return Namespace(**{**result, **changes})


def fresh_state(args: Namespace, source_vocab: int, target_vocab: int) -> State:
    """Random weights under fairseq's names, tied tables once for each name."""
    state: State = {}
    for side, vocab in (("encoder", source_vocab), ("decoder", target_vocab)):
        state[f"{side}.version"] = torch.tensor([3.0])
        state[f"{side}.embed_tokens.weight"] = torch.randn(vocab, 24) * 0.3
        if args.encoder_learned_pos:
            state[f"{side}.embed_positions.weight"] = torch.randn(64 + PAD + 1, 24)
        else:
            state[f"{side}.embed_positions._float_tensor"] = torch.zeros(1)
        for number in range(getattr(args, f"{side}_layers")):
            fresh_layer(state, f"{side}.layers.{number}", side == "decoder")
        if args.encoder_normalize_before:
            fresh_norm(state, f"{side}.layer_norm")
        if getattr(args, "layernorm_embedding", False):
            fresh_norm(state, f"{side}.layernorm_embedding")
    words = state["decoder.embed_tokens.weight"]
    if args.share_all_embeddings:
        state["encoder.embed_tokens.weight"] = words
    is_tied = args.share_all_embeddings or args.share_decoder_input_output_embed
    state["decoder.output_projection.weight"] = words if is_tied else torch.randn(target_vocab, 24)
    return state


def fresh_layer(state: State, name: str, has_cross: bool) -> None:
    for room in ("self_attn", "encoder_attn") if has_cross else ("self_attn",):
        for part in ("k_proj", "v_proj", "q_proj", "out_proj"):
            fresh_linear(state, f"{name}.{room}.{part}", 24, 24)
        fresh_norm(state, f"{name}.{room}_layer_norm")
    fresh_linear(state, f"{name}.fc1", 24, 40)
    fresh_linear(state, f"{name}.fc2", 40, 24)
    fresh_norm(state, f"{name}.final_layer_norm")


def fresh_linear(state: State, name: str, width: int, out: int) -> None:
    state[f"{name}.weight"] = torch.randn(out, width) * width**-0.5
    state[f"{name}.bias"] = torch.randn(out) * 0.1


def fresh_norm(state: State, name: str) -> None:
    state[f"{name}.weight"] = 1 + torch.randn(24) * 0.1
    state[f"{name}.bias"] = torch.randn(24) * 0.1


def logits(
    args: Namespace, state: State, sources: list[list[int]], targets: list[list[int]]
) -> Tensor:
    """Logits of targets of equal length."""
    longest = max(len(source) for source in sources)
    ids_BS = torch.tensor([[PAD] * (longest - len(row)) + row for row in sources])
    is_pad_BS = ids_BS == PAD
    x_BSD = embed(args, state, "encoder", ids_BS)
    for number in range(args.encoder_layers):
        x_BSD = layer(args, state, f"encoder.layers.{number}", x_BSD, is_pad_BS)
    x_BSD = final(args, state, "encoder", x_BSD)
    ids_BT = torch.tensor(targets)
    x_BTD = embed(args, state, "decoder", ids_BT)
    for number in range(args.decoder_layers):
        x_BTD = layer(args, state, f"decoder.layers.{number}", x_BTD, None, x_BSD, is_pad_BS)
    x_BTD = final(args, state, "decoder", x_BTD)
    return x_BTD @ state["decoder.output_projection.weight"].T


def embed(args: Namespace, state: State, side: str, ids: Tensor) -> Tensor:
    x = F.embedding(ids, state[f"{side}.embed_tokens.weight"])
    x = x if getattr(args, "no_scale_embedding", False) else x * math.sqrt(24)
    is_word = (ids != PAD).long()
    positions = is_word.cumsum(dim=1) * is_word + PAD
    table = state.get(f"{side}.embed_positions.weight")
    x = x + F.embedding(positions, waves(80) if table is None else table)
    return norm(state, f"{side}.layernorm_embedding", x)


def waves(count: int) -> Tensor:
    """SinusoidalPositionalEmbedding.get_embedding."""
    half = 24 // 2
    step = math.log(10000) / (half - 1)
    angles = torch.arange(count)[:, None] * torch.exp(torch.arange(half) * -step)[None]
    return torch.cat((torch.sin(angles), torch.cos(angles)), dim=1)


def norm(state: State, name: str, x: Tensor) -> Tensor:
    """A LayerNorm, where the model has it."""
    if f"{name}.weight" not in state:
        return x
    return F.layer_norm(x, (24,), state[f"{name}.weight"], state[f"{name}.bias"], 1e-5)


def final(args: Namespace, state: State, side: str, x: Tensor) -> Tensor:
    return norm(state, f"{side}.layer_norm", x)


def layer(
    args: Namespace,
    state: State,
    name: str,
    x: Tensor,
    is_pad: Tensor | None,
    memory: Tensor | None = None,
    is_memory_pad: Tensor | None = None,
) -> Tensor:
    """One layer; with a memory it is a decoder's."""
    is_before = args.encoder_normalize_before

    def around(x: Tensor, norm_name: str, inner: object) -> Tensor:
        if is_before:
            return x + inner(norm(state, norm_name, x))
        return norm(state, norm_name, x + inner(x))

    def itself(y: Tensor) -> Tensor:
        return attend(state, f"{name}.self_attn", y, y, is_pad, memory is not None)

    def across(y: Tensor) -> Tensor:
        return attend(state, f"{name}.encoder_attn", y, memory, is_memory_pad, False)

    def wide(y: Tensor) -> Tensor:
        inner = ACTIVATIONS[args.activation_fn](linear(state, f"{name}.fc1", y))
        return linear(state, f"{name}.fc2", inner)

    x = around(x, f"{name}.self_attn_layer_norm", itself)
    if memory is not None:
        x = around(x, f"{name}.encoder_attn_layer_norm", across)
    return around(x, f"{name}.final_layer_norm", wide)


def linear(state: State, name: str, x: Tensor) -> Tensor:
    return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]


def attend(
    state: State, name: str, x: Tensor, memory: Tensor, is_pad: Tensor | None, is_causal: bool
) -> Tensor:
    """MultiheadAttention with 3 heads of 8 numbers."""
    q = linear(state, f"{name}.q_proj", x).unflatten(-1, (3, 8)).transpose(1, 2) * 8**-0.5
    k = linear(state, f"{name}.k_proj", memory).unflatten(-1, (3, 8)).transpose(1, 2)
    v = linear(state, f"{name}.v_proj", memory).unflatten(-1, (3, 8)).transpose(1, 2)
    scores = q @ k.transpose(-1, -2)
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    if is_pad is not None:
        scores = scores.masked_fill(is_pad[:, None, None, :], -math.inf)
    y = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
    return linear(state, f"{name}.out_proj", y)
