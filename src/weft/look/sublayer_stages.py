"""The stages of one sub-layer for some rows: a Block, x_BTD -> values by name (stages.py).

    run_attention     self- or cross-attention inside its residual path, with hooks
    run_feedforward   the feed-forward layer inside its residual path, with hooks
    explicit_scores   q, k, v, bias, scores, mask and weights from the layer's input, by its methods

The first two run the modules as a forward pass does; what they hook is what the model computes. The
third is an independent computation of the same weights: their largest difference is part of the
trace (`check`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from weft.core.kv_spec import DenseView, KVRows
from weft.look.taps import Edit, Values, tapped
from weft.nn.attention.base import AttentionContext
from weft.nn.attention.grouped_query import GroupedQueryAttention, split_heads
from weft.nn.attention.kernels.reference import masked_softmax, raw_scores
from weft.nn.attention.latent import LatentAttention
from weft.nn.attention.layer import Attention
from weft.nn.block import Block, Residual
from weft.nn.feedforward import MLP, GatedMLP
from weft.nn.mixture_of_experts import MixtureOfExperts, SharedExperts
from weft.nn.positions.base import Position


def run_attention(
    block: Block,
    part: str,
    x_BTD: Tensor,
    ctx: AttentionContext,
    ablated: Sequence[int] = (),
    has_weights: bool = True,
) -> tuple[Tensor, Values]:
    """(output, stages) of a part: attention or cross. `ablated`: heads whose output before W_O is
    set to zero. Stages are [1, rows, ...]; weights are [1, H, rows, keys so far]. "input" is the
    input of the layer itself, as hooked."""
    layer, path = attention_of(block, part)
    outputs: dict[str, nn.Module] = {"out": layer.out}
    if has_weights:
        outputs["weights"] = layer.weights
    edits: dict[nn.Module, Edit] = {layer.out: zero_heads(layer, ablated)} if ablated else {}
    outputs |= path_outputs(path)
    inputs = {"input": layer, "heads": layer.out} | path_inputs(path)
    with tapped(outputs, inputs, edits) as values:
        y_BTD = path(x_BTD, lambda x: layer(x, ctx))
    heads_BTA = values["heads"]
    values["heads"] = heads_BTA.unflatten(-1, (num_heads(layer), -1))
    values.setdefault("residual", y_BTD)
    return y_BTD, values


def attention_of(block: Block, part: str) -> tuple[Attention, Residual]:
    """The layer of a part and the path around it."""
    if part == "attention":
        return block.attention, block.attention_path
    assert block.cross is not None and block.cross_path is not None, "no cross-attention"
    return block.cross, block.cross_path


def num_heads(layer: Attention) -> int:
    return layer.config.num_heads


def zero_heads(layer: Attention, heads: Sequence[int]) -> Edit:
    """Sets the slices of heads in the input of W_O to zero."""

    def edit(heads_BTA: Tensor) -> Tensor:
        edited = heads_BTA.unflatten(-1, (num_heads(layer), -1)).clone()
        edited[..., list(heads), :] = 0
        return edited.flatten(-2)

    return edit


def path_outputs(path: Residual) -> dict[str, nn.Module]:
    norms: dict[str, nn.Module] = {"norm": path.norm}
    return {**norms, "norm_out": path.norm_out} if path.placement == "both" else norms


def path_inputs(path: Residual) -> dict[str, nn.Module]:
    """With the norm after it, the sum is the input of the norm."""
    return {"residual": path.norm} if path.placement == "after" else {}


# --- the same attention, step by step -------------------------------------------------------------


def explicit_scores(
    layer: Attention, x_BTD: Tensor, ctx: AttentionContext, kv: KVRows, slots_T: Tensor
) -> Values:
    """The stages of the queries at some slots, in any order, over all rows of kv. x_BTD are their
    inputs of the layer; `ctx` has their positions."""
    projected, q_BTHC = queries(layer, x_BTD, ctx)
    k_BSKC, v_BSKU = keys_and_values(layer, kv)
    values = {"q": q_BTHC, "k": k_BSKC, "v": v_BSKU}
    if changes_heads(layer, ctx):
        values["q_projected"] = projected
    scores_BHTS = raw_scores(q_BTHC, k_BSKC, layer.scale, layer.config.softcap)
    k_S = torch.arange(k_BSKC.shape[1], device=slots_T.device)
    bias = layer.bias(q_BTHC, ctx)
    if bias is not None:
        bias = bias.for_call(q_BTHC, DenseView(k_BSKC, v_BSKU, ctx.start))
        t_T = torch.arange(len(slots_T), device=slots_T.device)
        bias_BHTS = bias.at(t_T, slots_T[None], k_S, *bias.tensors())
        values["bias"] = bias_BHTS.expand_as(scores_BHTS)
        scores_BHTS = scores_BHTS + bias_BHTS
    values["scores"] = scores_BHTS
    allowed_BTS = torch.ones(1, len(slots_T), len(k_S), dtype=torch.bool, device=slots_T.device)
    mask = layer.mask(ctx)
    if mask is not None:
        b = torch.zeros(1, 1, 1, dtype=torch.long, device=slots_T.device)
        allowed_BTS = mask.allows(b, slots_T[None, :, None], k_S).expand_as(allowed_BTS)
    values["mask"] = allowed_BTS
    values["weights"] = masked_softmax(scores_BHTS, allowed_BTS[:, None])[0]
    return values


def queries(layer: Attention, x_BTD: Tensor, ctx: AttentionContext) -> tuple[Tensor, Tensor]:
    """(projected, as in the product with the keys), both q_BTHC."""
    if isinstance(layer, LatentAttention):
        q_BTHC = layer.query(x_BTD).unflatten(-1, (layer.num_heads, -1))
        nope_BTHJ, rope_BTHO = q_BTHC.split((layer.nope_size, layer.rope_size), dim=-1)
        return q_BTHC, torch.cat((nope_BTHJ, layer.rotate_queries(rope_BTHO, ctx)), dim=-1)
    assert isinstance(layer, GroupedQueryAttention), f"unknown layer {type(layer).__name__}"
    rows = slice(layer.num_heads * layer.head_size)
    q_BTHC = layer.unflatten_heads(layer.project(x_BTD, rows))
    return q_BTHC, layer.rotate_queries(layer.query_norm(q_BTHC), ctx)


def changes_heads(layer: Attention, ctx: AttentionContext) -> bool:
    """Whether QK-norm or RoPE change queries and keys after their projection."""
    has_norm = isinstance(layer, GroupedQueryAttention) and layer.config.qk_norm
    rotates = type(ctx.position).rotate_queries is not Position.rotate_queries
    return has_norm or (rotates and not layer.slot.is_cross)


def projected_keys(layer: Attention, x_BSD: Tensor, ctx: AttentionContext) -> Values:
    """Keys before QK-norm and RoPE; nothing if they stay as they are, and for MLA, whose rows are
    c_kv and k_rope."""
    if not isinstance(layer, GroupedQueryAttention) or not changes_heads(layer, ctx):
        return {}
    H, K = layer.num_heads, layer.num_kv_heads
    x_BSAC = layer.unflatten_heads(layer.qkv(x_BSD))
    return {"k_projected": split_heads(x_BSAC, (H, K, K))[1]}


def keys_and_values(layer: Attention, kv: KVRows) -> tuple[Tensor, Tensor]:
    """k_BSKC and v_BSKU of the cached rows; for MLA those of every head."""
    if not isinstance(layer, LatentAttention):
        return kv["k"], kv["v"]
    c_BSA, r_BSO = kv["latent"].split((layer.kv_rank, layer.rope_size), dim=-1)
    kv_BSHC = layer.kv_up(c_BSA).unflatten(-1, (layer.num_heads, -1))
    k_BSHJ, v_BSHU = kv_BSHC.split((layer.nope_size, layer.value_size), dim=-1)
    r_BSHO = r_BSO[:, :, None].expand(-1, -1, layer.num_heads, -1)
    return torch.cat((k_BSHJ, r_BSHO), dim=-1), v_BSHU


def latent_rows(layer: Attention, kv: KVRows) -> Values:
    """MLA's cached rows: c_kv and k_rope."""
    if not isinstance(layer, LatentAttention):
        return {}
    c_BSA, r_BSO = kv["latent"].split((layer.kv_rank, layer.rope_size), dim=-1)
    return {"c_kv": c_BSA, "k_rope": r_BSO}


# --- feed-forward ---------------------------------------------------------------------------------


def run_feedforward(block: Block, x_BTD: Tensor) -> tuple[Tensor, Values]:
    """(output, stages) of the feed-forward part."""
    layer, path = block.feedforward, block.feedforward_path
    inner: nn.Module | None = layer.shared if isinstance(layer, MixtureOfExperts) else layer
    outputs: dict[str, nn.Module] = {"out": layer} | path_outputs(path)
    inputs: dict[str, nn.Module] = {"input": layer} | path_inputs(path)
    if isinstance(inner, MLP | GatedMLP | SharedExperts):
        inputs["hidden"] = inner.down
        outputs["up"] = inner.up if isinstance(inner, MLP) else inner.gate_up
    if isinstance(layer, MixtureOfExperts):
        outputs["router"] = layer.router
    with tapped(outputs, inputs) as values:
        y_BTD = path(x_BTD, layer)
    values.setdefault("residual", y_BTD)
    if inner is not None and not isinstance(inner, MLP):
        values["gate"], values["up"] = values["up"].chunk(2, dim=-1)
    if isinstance(layer, MixtureOfExperts):
        values |= expert_values(layer, values)
        values.pop("router")
    return y_BTD, {name: with_batch(name, tensor) for name, tensor in values.items()}


def expert_values(layer: MixtureOfExperts, values: Mapping[str, Tensor]) -> Values:
    """The selected experts of each token, their weights and outputs."""
    ids, weights = values["router"]
    x_ND = values["input"].flatten(0, -2)
    return {"experts": ids, "expert_weights": weights, "expert_out": layer.routed(x_ND, ids)}


def with_batch(name: str, tensor: Tensor) -> Tensor:
    """[1, rows, ...] of [rows, ...]: packed layers and experts flatten rows."""
    return tensor if tensor.dim() == (4 if name == "expert_out" else 3) else tensor[None]
