"""The compiled attention over short sequences equals the one in torch, forward and back."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from weft.native.attention_kernels import NativeShortAttention, can_compile_short
from weft.native.library import native
from weft.nn.attention.kernels.short import ShortAttention, short_attention

needs_library = pytest.mark.skipif(native() is None, reason="no compiler here")

SIZES = [
    (3, 2, 5, 9, 16),
    (2, 4, 17, 16, 32),
    (4, 1, 2, 70, 48),
    (1, 3, 31, 8, 64),
    (5, 2, 7, 7, 16),
]


def heads(B: int, H: int, T: int, C: int) -> Tensor:
    """[B, H, T, C], which lie as the layers leave them: heads between tokens."""
    return torch.randn(B, T, H, C).transpose(1, 2).requires_grad_()


def results(kind: type, inputs: list[Tensor], rest: tuple, wants: list[bool]) -> list[Tensor]:
    """out and lse, and the gradients of a sum of those that are wanted."""
    both = kind.apply(*inputs, *rest)
    source = torch.Generator().manual_seed(1)
    total = sum(
        (x * torch.randn(x.shape, generator=source)).sum()
        for x, wanted in zip(both, wants, strict=True)
        if wanted
    )
    return [*both, *torch.autograd.grad(total, inputs, materialize_grads=True)]


@needs_library
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("wants", [[True, False], [True, True], [False, True]])
@pytest.mark.parametrize("is_masked", [False, True])
def test_it_equals_torch(size: tuple[int, ...], wants: list[bool], is_masked: bool) -> None:
    torch.manual_seed(0)
    B, H, T, S, C = size
    inputs = [heads(B, H, T, C), heads(B, H, S, C), heads(B, H, S, C + 16)]
    added = empty = None
    if is_masked:
        added = torch.randn(B, H, T, S)
        added[:, :, :, S - 2 :] = -torch.inf
        added[0, :, 1] = -torch.inf  # a query that sees nothing
        empty = torch.zeros(B, T, dtype=torch.bool)
        empty[0, 1] = True
    ours = results(NativeShortAttention, inputs, (added, 0.3), wants)
    theirs = results(ShortAttention, inputs, (added, empty, 0.3), wants)
    for mine, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, expected, atol=2e-5, rtol=1e-5)


@needs_library
def test_a_mask_for_all_rows_and_heads_is_shared() -> None:
    torch.manual_seed(0)
    inputs = [heads(3, 2, 6, 16) for _ in range(3)]
    added = torch.full((6, 6), -torch.inf).triu(1)
    ours = results(NativeShortAttention, inputs, (added, 1.0), [True, True])
    theirs = results(ShortAttention, inputs, (added, None, 1.0), [True, True])
    for mine, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, expected, atol=2e-5, rtol=1e-5)


@needs_library
def test_the_number_of_threads_changes_no_bit() -> None:
    torch.manual_seed(0)
    inputs, threads = [heads(9, 2, 11, 32) for _ in range(3)], torch.get_num_threads()
    try:
        result = []
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            result.append(results(NativeShortAttention, inputs, (None, 0.5), [True, True]))
    finally:
        torch.set_num_threads(threads)
    for other in result[1:]:
        assert all(torch.equal(a, b) for a, b in zip(result[0], other, strict=True))


@needs_library
def test_gradients_of_a_joint_projection_lie_side_by_side() -> None:
    inputs = [heads(2, 3, 5, 16) for _ in range(3)]
    slopes = results(NativeShortAttention, inputs, (None, 1.0), [True, False])[2:]
    assert len({x.untyped_storage().data_ptr() for x in slopes}) == 1


@pytest.mark.parametrize("dtype, C", [(torch.float64, 16), (torch.float32, 12)])
def test_what_the_library_does_not_take_goes_to_torch(dtype: torch.dtype, C: int) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, 5, C, dtype=dtype, requires_grad=True) for _ in range(3))
    assert not can_compile_short(q, k, v)
    out, _ = short_attention(q, k, v, None, None, 0.25)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.25)
    torch.testing.assert_close(out, expected)
