"""Shaw, bucketed and linear bias against explicit loops and against the models that use them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import T5Config
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from weft.core.errors import ConfigError
from weft.nn.positions.config import AlibiConfig, PositionShape, ShawConfig, T5BiasConfig
from weft.nn.positions.encodings import build_position
from weft.nn.positions.shaw import Shaw
from weft.nn.positions.t5_bias import BucketRule, T5Bias

B, T, S, H, C, L = 2, 5, 7, 3, 8, 4


def shape(is_causal: bool, num_heads: int = H) -> PositionShape:
    return PositionShape(
        width=H * C,
        num_heads=num_heads,
        head_size=C,
        rotary_size=C,
        num_layers=L,
        max_len=64,
        is_causal=is_causal,
    )


def slots(start: int, num_queries: int, num_keys: int) -> tuple[Tensor, Tensor, Tensor]:
    t_T = torch.arange(num_queries)
    return t_T, (start + t_T)[None], torch.arange(num_keys)


@pytest.mark.parametrize("is_causal", [True, False])
def test_shaw_is_the_papers_equation_5(is_causal: bool) -> None:
    position = build_position(ShawConfig(max_distance=3), shape(is_causal))
    assert isinstance(position, Shaw)
    assert position.table_LMC.shape == (L, 4 if is_causal else 7, C)
    q_BTHC, layer, start = torch.randn(B, T, H, C), 2, 2
    bias = position.bias(layer, q_BTHC)
    bias_BHTS = bias.at(*slots(start, T, S), *bias.tensors())
    right = 0 if is_causal else 3
    for b in range(B):
        for h in range(H):
            for t in range(T):
                for s in range(S):
                    row = max(-3, min(right, s - (start + t))) + 3
                    expected = q_BTHC[b, t, h] @ position.table_LMC[layer, row] / C**0.5
                    torch.testing.assert_close(bias_BHTS[b, h, t, s], expected)


def test_shaw_gradients_reach_the_query_and_the_table() -> None:
    position = build_position(ShawConfig(max_distance=2), shape(is_causal=False)).double()
    assert isinstance(position, Shaw)
    q_BTHC = torch.randn(B, T, H, C, dtype=torch.float64, requires_grad=True)
    table_LMC = position.table_LMC.detach().clone().requires_grad_()

    class Tile(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.position = position

        def forward(self, q_BTHC: Tensor) -> Tensor:
            bias = position.bias(1, q_BTHC)
            return bias.at(*slots(1, T, S), *bias.tensors())

    def run(q_BTHC: Tensor, table_LMC: Tensor) -> Tensor:
        return functional_call(Tile(), {"position.table_LMC": table_LMC}, q_BTHC)

    assert torch.autograd.gradcheck(run, (q_BTHC, table_LMC))


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (8, 20), (6, 9), (4, 3)])
def test_buckets_are_t5s(bidirectional: bool, num_buckets: int, max_distance: int) -> None:
    distances = torch.arange(-600, 601)
    theirs = T5Attention._relative_position_bucket(
        distances, bidirectional, num_buckets, max_distance
    )
    rule = BucketRule(num_buckets, max_distance, bidirectional)
    assert torch.equal(rule.bucket(distances), theirs)


@pytest.mark.parametrize("is_causal", [True, False])
def test_the_bucketed_bias_is_t5s(is_causal: bool) -> None:
    position = build_position(T5BiasConfig(num_buckets=8, max_distance=20), shape(is_causal))
    assert isinstance(position, T5Bias)
    config = T5Config(
        num_heads=H,
        d_model=H * C,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=20,
        is_decoder=is_causal,
    )
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    theirs.relative_attention_bias.weight.data = position.table_MH.data
    bias = position.bias(0, torch.randn(B, 40, H, C))
    ours = bias.at(*slots(3, 40, 50), *bias.tensors())
    assert torch.equal(ours, theirs.compute_bias(40, 50, past_seen_tokens=3))


def test_bucketed_gradients_are_exact() -> None:
    position = build_position(T5BiasConfig(num_buckets=4, max_distance=5), shape(False)).double()
    bias = position.bias(0, torch.randn(B, T, H, C))
    (table_MH,) = (tensor.detach().requires_grad_() for tensor in bias.tensors())
    assert torch.autograd.gradcheck(lambda table: bias.at(*slots(1, T, S), table), table_MH)


@pytest.mark.parametrize("num_heads", [1, 3, 4, 6, 8, 12, 16, 20])
def test_alibi_is_blooms_up_to_a_constant_of_each_query(num_heads: int) -> None:
    position = build_position(AlibiConfig(), shape(True, num_heads))
    bias = position.bias(0, torch.randn(1, S, num_heads, C))
    assert bias.tensors() == ()
    ours_HTS = bias.at(*slots(0, S, S))[0]
    theirs_H1S = build_alibi_tensor(torch.ones(1, S, dtype=torch.long), num_heads, torch.float32)
    here = ours_HTS - ours_HTS[:, :, :1]
    torch.testing.assert_close(here, theirs_H1S.expand_as(here))
    assert torch.equal(ours_HTS.diagonal(dim1=1, dim2=2), torch.zeros(num_heads, S))


def test_alibi_looks_the_same_in_both_directions_without_a_causal_mask() -> None:
    bias = build_position(AlibiConfig(), shape(False, 4)).bias(0, torch.randn(1, T, 4, C))
    bias_HTS = bias.at(*slots(0, T, T))[0]
    assert torch.equal(bias_HTS, bias_HTS.mT)
    # 4 heads: slopes 1/4, 1/16, 1/64, 1/256
    assert bias_HTS[1, 0, 3].item() == -3 / 16


def test_alibi_distances_stay_apart_in_bfloat16() -> None:
    q_BTHC = torch.randn(1, 1, H, C, dtype=torch.bfloat16)
    bias = build_position(AlibiConfig(), shape(True)).bias(0, q_BTHC)
    far = bias.at(torch.arange(1), torch.tensor([[1000]]), torch.arange(3))
    assert (far[0, 0, 0].diff() > 0).all()


def test_an_odd_number_of_buckets_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"num_buckets is 7: .* must be even. Use 8."):
        T5BiasConfig(num_buckets=7)


def test_buckets_that_do_not_reach_beyond_the_near_ones_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"max_distance is 16 but num_buckets is 32: .*above 16, or fewer buckets"
    ):
        T5BiasConfig(num_buckets=32, max_distance=16)
