"""Against torch's own modules: MultiheadAttention, TransformerEncoderLayer,
TransformerDecoderLayer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from weft.core.forward_batch import ForwardBatch
from weft.models.build import build_model
from weft.models.config import ModelConfig
from weft.models.transformer import EncoderDecoder

from .weights import State, load, shake, take


def torch_state(source: State, side: str, num_layers: int) -> State:
    """Names of nn.Transformer's stacks under ours."""
    state: State = {}
    for i in range(num_layers):
        ours, theirs = f"{side}.blocks.{i}", f"{side}.layers.{i}"
        rooms = [("self_attn", "attention", "norm1")]
        rooms += [("multihead_attn", "cross", "norm2")] if side == "decoder" else []
        for name, room, norm in rooms:
            for part in ("weight", "bias"):
                state[f"{ours}.{room}.qkv.{part}"] = source[f"{theirs}.{name}.in_proj_{part}"]
            take(state, f"{ours}.{room}.out", f"{theirs}.{name}.out_proj", source)
            take(state, f"{ours}.{room}_path.norm", f"{theirs}.{norm}", source)
        take(state, f"{ours}.feedforward.up", f"{theirs}.linear1", source)
        take(state, f"{ours}.feedforward.down", f"{theirs}.linear2", source)
        take(state, f"{ours}.feedforward_path.norm", f"{theirs}.norm{len(rooms) + 1}", source)
    take(state, f"{side}.norm", f"{side}.norm", source)
    return state


def transformer_pair(placement: str) -> tuple[nn.Transformer, EncoderDecoder]:
    """torch's Transformer and ours with the same random weights. torch's has no embedding: ours is
    the identity."""
    sizes = {"dim_feedforward": 40, "dropout": 0.0, "batch_first": True}
    first = {"norm_first": placement == "before"}
    layer = nn.TransformerEncoderLayer(24, 3, **sizes, **first)
    encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(24), enable_nested_tensor=False)
    original = nn.Transformer(24, 3, num_decoder_layers=2, custom_encoder=encoder, **sizes, **first)
    shake(original)
    config = ModelConfig(
        kind="encoder-decoder",
        vocab_size=24,
        width=24,
        num_layers=2,
        max_len=32,
        dropout=0.0,
        attention={"kind": "mha", "num_heads": 3, "bias": True},
        position={"kind": "none"},
        feedforward={"kind": "relu", "width": 40, "bias": True},
        norm={"kind": "layernorm", "placement": placement, "eps": 1e-5},
        final_norm=True,
        embedding={"tied": "all"},
    )
    model = build_model(config)
    source = original.state_dict()
    state = torch_state(source, "encoder", 2) | torch_state(source, "decoder", 2)
    for name in ("encoder.embedding.words.weight", "decoder.embedding.words.weight", "head.weight"):
        state[name] = torch.eye(24)
    return original, load(model, state)


@pytest.mark.parametrize("placement", ["before", "after"])
def test_torch_transformer_gives_the_same_vectors_with_padding(placement: str) -> None:
    original, model = transformer_pair(placement)
    generator = torch.Generator().manual_seed(5)
    source_BS = torch.randint(0, 24, (2, 9), generator=generator)
    target_BT = torch.randint(0, 24, (2, 6), generator=generator)
    lengths_B = torch.tensor([9, 4])
    is_pad_BS = torch.arange(9) >= lengths_B[:, None]
    eye = torch.eye(24)
    with torch.no_grad():
        expected = original(
            eye[source_BS],
            eye[target_BT],
            tgt_mask=torch.ones(6, 6).triu(1).bool(),
            src_key_padding_mask=is_pad_BS,
            memory_key_padding_mask=is_pad_BS,
        )
        got = model(ForwardBatch(target_BT), ForwardBatch(source_BS, lengths_B=lengths_B))
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def weights_of(model: EncoderDecoder, name: str, run: object) -> Tensor:
    """The attention weights that a hook on a layer's `weights` sees."""
    seen: list[Tensor] = []
    hook = model.get_submodule(name).register_forward_hook(lambda _m, _i, out: seen.append(out))
    with torch.no_grad():
        run()
    hook.remove()
    return seen[0]


def test_a_hook_on_weights_sees_what_torch_multihead_attention_returns() -> None:
    original, model = transformer_pair("after")
    ids_BT = torch.randint(0, 24, (2, 7), generator=torch.Generator().manual_seed(6))
    x_BTD = torch.eye(24)[ids_BT]
    theirs = original.encoder.layers[0].self_attn
    with torch.no_grad():
        _, expected = theirs(x_BTD, x_BTD, x_BTD, average_attn_weights=False)
    got = weights_of(
        model, "encoder.blocks.0.attention.weights", lambda: model.encode(ForwardBatch(ids_BT))
    )
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-5)
