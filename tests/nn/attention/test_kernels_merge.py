"""merge: results over two halves of the keys are, merged, the result over all keys."""

import pytest
import torch

from weft.core.kv_spec import DenseView
from weft.nn.attention.base import AttentionCall
from weft.nn.attention.kernels import KERNELS, merge
from weft.nn.attention.masks import Padding, Window

B, T, S, H, K, C, U = 2, 5, 7, 4, 2, 8, 6


def halves(kernel, q, k, v, cut, mask=None):
    first = KERNELS[kernel](AttentionCall(q, DenseView(k[:, :cut], v[:, :cut]), mask))
    second = KERNELS[kernel](AttentionCall(q, DenseView(k[:, cut:], v[:, cut:])))
    return merge(*first, *second)


def leaves():
    shapes = ((B, T, H, C), (B, S, K, C), (B, S, K, U))
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("cut", [1, 3, 6])
def test_two_parts_merge_into_the_whole_with_its_gradients(kernel, cut):
    q, k, v = leaves()
    result, expected = (
        halves(kernel, q, k, v, cut),
        KERNELS["reference"](AttentionCall(q, DenseView(k, v))),
    )
    torch.testing.assert_close(result, expected)
    weights = [torch.randn(x.shape, dtype=x.dtype) for x in expected]
    grads = [
        torch.autograd.grad(sum((x * w).sum() for x, w in zip(xs, weights, strict=True)), (q, k, v))
        for xs in (result, expected)
    ]
    torch.testing.assert_close(*grads)


def test_a_side_without_keys_weighs_nothing_on_either_side():
    q, k, v = leaves()
    full = KERNELS["reference"](AttentionCall(q, DenseView(k, v)))
    empty = KERNELS["reference"](AttentionCall(q, DenseView(k, v), Padding(torch.tensor([0, 0]))))
    torch.testing.assert_close(merge(*full, *empty), full)
    torch.testing.assert_close(merge(*empty, *full), full)


def test_two_sides_without_keys_give_zero_and_finite_gradients():
    q, k, v = leaves()
    empty = KERNELS["reference"](AttentionCall(q, DenseView(k, v), Padding(torch.tensor([0, 3]))))
    out, lse = merge(*empty, *empty)
    assert (out[0] == 0).all() and (lse[0] == -torch.inf).all()
    grads = torch.autograd.grad(out.sum() + lse[1].sum(), (q, k, v))
    assert all(grad.isfinite().all() for grad in grads)


def test_merging_many_windows_is_exact_at_large_scores():
    q, k, v = (100 * x for x in leaves())
    torch.testing.assert_close(
        halves("flash", q, k, v, 4),
        KERNELS["reference"](AttentionCall(q, DenseView(k, v))),
        atol=1e-6,
        rtol=1e-9,
    )


def test_gradcheck_where_one_query_has_no_keys_on_one_side():
    q, k, v = leaves()
    assert torch.autograd.gradcheck(
        lambda *x: halves("reference", *x, 3, Window(2)), (q, k, v), fast_mode=True
    )
