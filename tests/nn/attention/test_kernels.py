"""Every kernel of the table gives the reference's out, lse and gradients."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from weft.core.errors import ConfigError
from weft.core.kv_spec import DenseView
from weft.nn.attention.base import AttentionCall
from weft.nn.attention.kernels import KERNELS, choose_kernel, dispatch, tiled
from weft.nn.attention.kernels.reference import attention_weights, reference_attention
from weft.nn.attention.kernels.sparse import tiles as tiles_module
from weft.nn.attention.masks import (
    Blocks,
    Causal,
    Documents,
    Full,
    Global,
    Padding,
    Prefix,
    Strided,
    Window,
    dilated,
    strided,
)
from weft.nn.positions.base import Bias

B, T, H, K, C, U = 2, 37, 4, 2, 8, 6


@dataclass(frozen=True)
class Slope(Bias):
    """A bias without gradients, as ALiBi: -slope * distance."""

    def tensors(self) -> tuple[Tensor, ...]:
        return ()

    def at(self, t_T: Tensor, q_BT: Tensor, k_S: Tensor) -> Tensor:
        slope_H11 = -0.1 * torch.arange(1, H + 1, dtype=torch.float64)[:, None, None]
        return slope_H11 * (q_BT[:, None, :, None] - k_S).abs()


@dataclass(frozen=True)
class Table(Bias):
    """A bias with gradients: a number for each head and distance, and one for each query."""

    table_HM: Tensor
    q_BTH: Tensor

    def tensors(self) -> tuple[Tensor, ...]:
        return self.table_HM, self.q_BTH

    def at(self, t_T: Tensor, q_BT: Tensor, k_S: Tensor, table_HM: Tensor, q_BTH: Tensor) -> Tensor:
        distance_BTS = (q_BT[:, :, None] - k_S).abs().clamp(max=table_HM.shape[1] - 1)
        own_BHT1 = q_BTH[:, t_T].transpose(1, 2)[..., None]
        return table_HM[:, distance_BTS].transpose(0, 1) + own_BHT1 * (k_S % 3)


def masks(S: int) -> dict[str, Any]:
    """Masks that remember nothing yet, for B rows of S keys."""
    documents_BS = torch.tensor([[0] * 11 + [1] * 40, [3] * 25 + [4] * 26])[:, :S]
    pattern = torch.tensor([[True, False, True], [False, True, False], [True, True, False]])
    return {
        "none": None,
        "full": Full(),
        "causal": Causal(),
        "window": Window(5),
        "causal window": Window(5) & Causal(),
        "dilated": dilated(4, 3),
        "causal dilated": dilated(4, 3) & Causal(),
        "strided": strided(5),
        "causal strided": strided(5) & Causal(),
        "global and window": (Window(4) | Global((3, 20))) & Causal(),
        "documents": Documents(documents_BS) & Causal(),
        "padding": Padding(torch.tensor([0, 20])),
        "padded causal": Padding(torch.tensor([20, 3])) & Causal(),
        "prefix": Causal() | Prefix(torch.tensor([4, 9])),
        "blocks": Blocks(pattern, 14),
        "not window": ~Window(30) & Causal(),
        "two steps": (Window(3) | Strided(4) | Strided(7)) & ~Global(2) & Causal(),
        "every and every": Strided(2) & Strided(3),
    }


MASKS = list(masks(T))


@pytest.fixture(params=[128, 8], ids=["one tile", "many tiles"])
def tiles(request, monkeypatch):
    """Each test runs with tiles larger than the sequence, and with many small ones."""
    monkeypatch.setattr(tiles_module, "TILE", request.param)
    monkeypatch.setattr(tiled, "TILE", request.param)
    if request.param == 8:
        monkeypatch.setattr(dispatch, "MAX_MATRIX", 100)
        monkeypatch.setattr(dispatch, "MAX_STORED_SCORES", 100)
    return request.param


def inputs(dtype=torch.float64, T=T, S=T, K=K, C=C, U=U):
    shapes = ((B, T, H, C), (B, S, K, C), (B, S, K, U))
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def results(kernel, leaves, start=0, mask=None, bias=None, **options):
    """out, lse and the gradients of all leaves under random weights for out and lse alike."""
    q, k, v = leaves[:3]
    out, lse = kernel(AttentionCall(q, DenseView(k, v, start), mask, bias, **options))
    assert out.shape == (*q.shape[:3], v.shape[-1]) and lse.shape == (B, H, q.shape[1])
    torch.manual_seed(1)
    seen = lse > -torch.inf
    loss = (out * torch.randn(out.shape)).sum()
    loss = loss + (torch.where(seen, lse, 0) * torch.randn(lse.shape)).sum()
    return out, lse, *torch.autograd.grad(loss, leaves, allow_unused=True)


def assert_same(kernel, leaves, tolerance=1e-10, **call):
    expected = results(reference_attention, leaves, **call)
    result = results(KERNELS[kernel], leaves, **call)
    for name, one, other in zip(("out", "lse", "dq", "dk", "dv"), result, expected, strict=False):
        torch.testing.assert_close(
            one, other, atol=tolerance, rtol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )
    assert len(result) == len(expected)
    for one, other in zip(result[5:], expected[5:], strict=True):
        torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_equals_the_reference_for_every_mask(kernel, mask, tiles):
    assert_same(kernel, inputs(), mask=masks(T)[mask])


@pytest.mark.parametrize("mask", ["none", "causal", "causal window", "causal strided", "padding"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_float32_agrees_to_five_digits(kernel, mask, tiles):
    assert_same(kernel, inputs(torch.float32), tolerance=1e-5, mask=masks(T)[mask])


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("K", [1, 4])
@pytest.mark.parametrize(("C", "U"), [(8, 8), (3, 10)])
def test_key_heads_and_value_sizes(kernel, K, C, U, tiles):
    assert_same(kernel, inputs(K=K, C=C, U=U), mask=strided(5) & Causal(), scale=0.7)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("start", [14, torch.tensor([14, 14]), torch.tensor([3, 14])], ids=str)
@pytest.mark.parametrize("kernel", ["flash", "sparse"])
def test_queries_that_follow_a_cache(kernel, start, mask, tiles):
    assert_same(kernel, inputs(T=23), mask=masks(37)[mask], start=start)


@pytest.mark.parametrize("mask", ["none", "causal", "causal window", "causal strided", "padding"])
@pytest.mark.parametrize("start", [36, torch.tensor([3, 36])], ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("K", [1, 2, 4])
def test_one_new_token_attends_to_its_cache(kernel, K, start, mask):
    assert_same(kernel, inputs(T=1, S=37, K=K), mask=masks(37)[mask], start=start)


@pytest.mark.parametrize("mask", ["none", "causal", "causal strided", "padding", "documents"])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_bias_with_and_without_gradients(kernel, mask, softcap, tiles):
    options = {"mask": masks(T)[mask], "softcap": softcap}
    assert_same(kernel, inputs(), bias=Slope(), **options)
    assert_same(kernel, inputs(), **options)
    table = torch.randn(H, 9, dtype=torch.float64, requires_grad=True)
    own = torch.randn(B, T, H, dtype=torch.float64, requires_grad=True)
    assert_same(kernel, [*inputs(), table, own], bias=Table(table, own), **options)


@pytest.mark.parametrize("T", [1, 5])
@pytest.mark.parametrize("kernel", ["flash", "sparse"])
def test_a_bias_that_needs_no_gradient_follows_a_cache(kernel, T):
    table, own = torch.randn(H, 9).double(), torch.randn(B, T, H).double()
    start = torch.tensor([3, 14])
    for bias in (Slope(), Table(table, own)):
        assert_same(kernel, inputs(T=T), bias=bias, mask=masks(37)["padded causal"], start=start)


@pytest.mark.parametrize("mask", ["none", "causal", "causal strided", "padding"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_gradcheck_through_out_and_lse(kernel, mask, tiles):
    mask = masks(11)[mask]

    def run(q, k, v):
        out, lse = KERNELS[kernel](AttentionCall(q, DenseView(k, v), mask))
        return out, torch.where(lse > -torch.inf, lse, 0)

    leaves = inputs(T=11, S=11, K=2, C=3, U=2)
    assert torch.autograd.gradcheck(run, leaves, fast_mode=True)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_query_without_allowed_keys_gets_zero_and_minus_infinity(kernel, tiles):
    out, lse, *grads = results(KERNELS[kernel], inputs(torch.float32), mask=masks(T)["padding"])
    assert (out[0] == 0).all() and (lse[0] == -torch.inf).all()
    assert all(grad.isfinite().all() for grad in grads)
    assert all((grad[0] == 0).all() for grad in grads)


@pytest.mark.parametrize("kernel", KERNELS)
def test_keys_that_are_masked_for_a_whole_inner_block_leave_no_trace(kernel):
    """The fused kernel works in blocks of 512 keys: the first of them is masked out here."""
    assert_same(kernel, inputs(T=4, S=1100), mask=~Global(600), start=1096)


@pytest.mark.parametrize("kernel", KERNELS)
def test_only_out_or_only_lse_may_be_asked_for(kernel, tiles):
    for which in (0, 1):
        leaves = inputs()
        mask = masks(T)["causal window"]
        result, expected = (
            torch.autograd.grad(
                run(AttentionCall(leaves[0], DenseView(*leaves[1:]), mask))[which].sum(),
                leaves,
                allow_unused=True,
            )
            for run in (KERNELS[kernel], reference_attention)
        )
        for one, other in zip(result, expected, strict=True):
            torch.testing.assert_close(
                torch.zeros(()) if one is None else one.sum(),
                torch.zeros(()) if other is None else other.sum(),
                check_dtype=False,
            )


@pytest.mark.parametrize("kernel", KERNELS)
def test_queries_and_keys_that_are_views_are_read_as_they_are(kernel):
    q, k, v = inputs(U=C)
    qkv = torch.cat([q, k, v], dim=2).detach()
    views = [x.requires_grad_() for x in qkv.split((H, K, K), dim=2)]
    odd = [x.detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_() for x in views]
    for mask in (None, Causal(), Window(5)):
        assert_same(kernel, odd, mask=mask)
        torch.testing.assert_close(
            KERNELS[kernel](AttentionCall(views[0], DenseView(*views[1:]), mask)),
            reference_attention(AttentionCall(q, DenseView(k, v), mask)),
        )


@pytest.mark.parametrize("kernel", KERNELS)
def test_bfloat16_scores_are_wide_and_results_narrow(kernel):
    q, k, v = (x.detach().bfloat16() for x in inputs(torch.float32))
    out, lse = KERNELS[kernel](AttentionCall(q, DenseView(k, v), Window(5)))
    wide = AttentionCall(q.float(), DenseView(k.float(), v.float()), Window(5))
    expected, _ = reference_attention(wide)
    assert out.dtype == torch.bfloat16 and lse.dtype == torch.float32
    torch.testing.assert_close(out.float(), expected, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("kernel", KERNELS)
def test_dropout_drops_weights_and_keeps_their_mean(kernel):
    q, k, v = inputs(torch.float32)
    call = AttentionCall(q, DenseView(k, v), Window(5))
    dropping = replace(call, dropout=0.5)
    dropped = torch.stack([KERNELS[kernel](dropping)[0] for _ in range(200)])
    assert dropped.std(dim=0).amax() > 0.1
    torch.testing.assert_close(dropped.mean(dim=0), reference_attention(call)[0], atol=0.6, rtol=0)


def test_weights_sum_to_one_or_to_nothing():
    q, k, v = inputs(torch.float32)
    weights, lse = attention_weights(AttentionCall(q, DenseView(k, v), masks(T)["padding"]))
    assert weights.shape == (B, H, T, T)
    torch.testing.assert_close(weights.sum(dim=-1)[1], torch.ones(H, T))
    assert (weights[0] == 0).all() and (lse[0] == -torch.inf).all()


def test_the_reference_is_the_formula_of_the_paper():
    q, k, v = inputs(K=H, U=C)
    weights = (torch.einsum("bthc,bshc->bhts", q, k) / C**0.5).softmax(dim=-1)
    out, _ = KERNELS["reference"](AttentionCall(q, DenseView(k, v)))
    torch.testing.assert_close(out, torch.einsum("bhts,bshc->bthc", weights, v))


def test_an_unknown_kernel_is_named_with_the_known_ones():
    with pytest.raises(ConfigError, match="'flsh' is not a known attention kernel.*'flash'"):
        choose_kernel("flsh")
