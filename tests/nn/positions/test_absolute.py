"""Sinusoidal and learned positions against their formulas and against models that use them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

from weft.core.errors import ConfigError, UsageError
from weft.nn.positions.config import LearnedConfig, PositionShape, SinusoidalConfig
from weft.nn.positions.encodings import build_position
from weft.nn.positions.learned import Learned

B, T, D = 2, 5, 12


def shape(width: int = D, max_len: int = 9) -> PositionShape:
    return PositionShape(
        width,
        num_heads=3,
        head_size=4,
        rotary_size=4,
        num_layers=2,
        max_len=max_len,
        is_causal=True,
    )


def waves(config: SinusoidalConfig, num_positions: int, width: int = D) -> Tensor:
    position = build_position(config, shape(width))
    return position.add(torch.zeros(1, num_positions, width), torch.arange(num_positions)[None])[0]


def test_sinusoidal_is_the_papers_formula() -> None:
    rows = waves(SinusoidalConfig(), 3000)
    for p in (0, 1, 7, 255, 256, 2999):
        for i in range(D // 2):
            angle = p / 10000 ** (2 * i / D)
            assert rows[p, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert rows[p, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


def test_halves_are_marians() -> None:
    marian = MarianSinusoidalPositionalEmbedding(40, D)
    marian.weight.data = marian.create_weight()
    expected = marian((1, 40))
    torch.testing.assert_close(waves(SinusoidalConfig(layout="halves"), 40), expected)


def test_fairseq_spacing_and_offset_are_m2m100s() -> None:
    config = SinusoidalConfig(layout="halves", spacing="fairseq", offset=2)
    theirs = M2M100SinusoidalPositionalEmbedding(50, D, padding_idx=1)
    expected = theirs(torch.full((1, 40), 5))[0]
    torch.testing.assert_close(waves(config, 40), expected, atol=1e-5, rtol=0)


def test_a_wave_has_the_same_bits_however_long_the_text() -> None:
    short, long = waves(SinusoidalConfig(), 40), waves(SinusoidalConfig(), 2000)
    assert torch.equal(short, long[:40])


@pytest.mark.parametrize(("width", "spacing"), [(7, "paper"), (2, "fairseq")])
def test_a_width_without_pairs_is_refused(width: int, spacing: str) -> None:
    with pytest.raises(ConfigError, match=rf"width is {width}: sinusoidal.*must be even"):
        build_position(SinusoidalConfig(spacing=spacing), shape(width))


def test_learned_adds_the_row_of_each_position_behind_the_offset() -> None:
    position = build_position(LearnedConfig(offset=2), shape(max_len=9))
    assert isinstance(position, Learned)
    assert position.table_MD.shape == (11, D)
    x_BTD, positions_BT = torch.randn(B, T, D), torch.tensor([[0, 1, 2, 3, 4], [4, 5, 6, 7, 8]])
    y_BTD = position.add(x_BTD, positions_BT)
    for b in range(B):
        for t in range(T):
            row = position.table_MD[2 + int(positions_BT[b, t])]
            torch.testing.assert_close(y_BTD[b, t], x_BTD[b, t] + row)


def test_learned_max_len_is_the_settings_before_the_models() -> None:
    position = build_position(LearnedConfig(max_len=4), shape(max_len=9))
    with pytest.raises(UsageError, match=r"position 4 is beyond the table of 4 .*0 to 3.*max_len"):
        position.add(torch.zeros(1, T, D), torch.arange(T)[None])


def test_learned_gradients_are_exact() -> None:
    position = build_position(LearnedConfig(), shape()).double()
    assert isinstance(position, Learned)
    x_BTD = torch.randn(B, T, D, dtype=torch.float64)
    positions_1T = torch.tensor([[0, 3, 3, 8, 1]])

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.position = position

        def forward(self, x_BTD: Tensor) -> Tensor:
            return self.position.add(x_BTD, positions_1T)

    def run(table_MD: Tensor) -> Tensor:
        return functional_call(Sum(), {"position.table_MD": table_MD}, x_BTD)

    assert torch.autograd.gradcheck(run, position.table_MD.detach().requires_grad_())
