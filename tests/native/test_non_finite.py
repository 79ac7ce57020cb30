"""NaN in, NaN out: no kernel turns a NaN into a number, whatever the bits of its payload."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from weft.core.kv_spec import PagedView, PageLayout
from weft.native.attention_kernels import NativeShortAttention, PagedAttentionParams
from weft.native.kernels import ACTIVATIONS, activation, log_sum_exp
from weft.native.library import native
from weft.nn.attention.paged_attention import paged_attention

pytestmark = pytest.mark.skipif(native() is None, reason="needs the compiled kernels")

PAYLOADS = [0x7FC00000, 0x7FC00001, 0x7FC0003F, 0x7F800101, -0x3FFE01, -0x3FFFFF]
"""Bits of NaNs: quiet and signaling, of both signs. The low 9 bits of a payload are those that
`exp_of` shifts into the exponent."""


def nan(bits: int) -> Tensor:
    number = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    assert number.isnan()
    return number


@pytest.mark.parametrize("bits", PAYLOADS)
@pytest.mark.parametrize("position", [0, 3, 77, 199])
def test_log_sums_of_a_row_with_nan_is_nan(bits: int, position: int) -> None:
    logits = torch.randn(2, 200)
    logits[1, position] = nan(bits)
    sums = log_sum_exp(logits)
    assert math.isfinite(sums[0]) and sums[1].isnan()


@pytest.mark.parametrize("bits", PAYLOADS)
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activations_of_nan_are_nan(kind: str, bits: int) -> None:
    x = torch.randn(1, 37)
    expected = activation(kind, x)
    x[0, 5], x[0, 36] = nan(bits), nan(bits)
    y = activation(kind, x)
    assert y.isnan().nonzero()[:, 1].tolist() == [5, 36]
    assert y[:, 6:36].equal(expected[:, 6:36])


@pytest.mark.parametrize("bits", PAYLOADS)
@pytest.mark.parametrize("keys", [1, 40])
def test_short_attention_with_a_nan_query_is_nan(keys: int, bits: int) -> None:
    q, k, v = torch.randn(1, 1, 3, 16), *torch.randn(2, 1, 1, keys, 16)
    expected, expected_lse = NativeShortAttention.apply(q, k, v, None, 0.3)
    q[0, 0, 1, 2] = nan(bits)
    out, lse = NativeShortAttention.apply(q, k, v, None, 0.3)
    assert out[0, 0, 1].isnan().all() and lse[0, 0, 1].isnan()
    assert out[0, 0, ::2].equal(expected[0, 0, ::2])
    assert lse[0, 0, ::2].equal(expected_lse[0, 0, ::2])


@pytest.mark.parametrize("bits", PAYLOADS)
@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize(("length", "head_size"), [(1, 16), (45, 16), (45, 12)])
def test_paged_attention_with_a_nan_query_is_nan(
    length: int, head_size: int, softcap: float | None, bits: int
) -> None:
    def int32(*values: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int32)

    pages = torch.randn(2, 4, 16, 1, head_size)
    layout = PageLayout(int32(0, 1), int32(length - 1), int32(length), int32(1, 2, 3)[None])
    view = PagedView(pages[0], pages[1], layout)
    q, params = torch.randn(1, 2, head_size), PagedAttentionParams(head_size**-0.5, softcap=softcap)
    expected, expected_lse = paged_attention(q, view, params)
    q[0, 1, 3] = nan(bits)
    out, lse = paged_attention(q, view, params)
    assert out[0, 1].isnan().all() and lse[0, 1].isnan()
    assert out[0, 0].equal(expected[0, 0]) and lse[0, 0].equal(expected_lse[0, 0])
