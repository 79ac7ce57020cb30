"""Our dropout: the right share, the right mean, and the mask of the way there on the way back."""

from __future__ import annotations

import pytest
import torch

from weft.native.kernels import ByteDropout, HashDropout, random_bytes
from weft.native.library import native
from weft.nn.dropout import Dropout

KINDS = [
    ByteDropout,
    pytest.param(
        HashDropout, marks=pytest.mark.skipif(native() is None, reason="no compiler here")
    ),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 31, 32, 33, 100_003])
def test_both_kinds_give_the_mask_back(kind: type, size: int) -> None:
    x = torch.randn(size, requires_grad=True)
    y = kind.apply(x, 0.25)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient * x, y)
    kept = gradient[gradient != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 256 / 192))


@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_are_dropped_independently(kind: type) -> None:
    torch.manual_seed(0)
    kept = (kind.apply(torch.ones(400_000), 0.5) > 0).float() - 0.5
    assert abs(kept.mean().item()) < 0.004
    for distance in (1, 2, 7, 8, 16, 24, 31, 32, 64, 128, 1024):
        shared = (kept[:-distance] * kept[distance:]).mean().item() * 4
        assert abs(shared) < 0.01, f"at distance {distance}"


@pytest.mark.parametrize("kind", KINDS)
def test_two_calls_share_no_mask(kind: type) -> None:
    torch.manual_seed(0)
    first, second = ((kind.apply(torch.ones(400_000), 0.5) > 0).float() - 0.5 for _ in range(2))
    assert abs((first * second).mean().item() * 4) < 0.01


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5])
def test_it_drops_the_asked_share_and_keeps_the_mean(p: float) -> None:
    x = torch.ones(200, 1001)
    y = Dropout(p)(x)
    share = (y == 0).float().mean().item()
    assert share == pytest.approx(round(256 * p) / 256, abs=0.004)
    assert y.mean().item() == pytest.approx(1.0, abs=0.01)
    assert y.unique().numel() == 2


def test_the_gradient_goes_through_what_was_kept() -> None:
    x = torch.randn(7, 13, requires_grad=True)
    y = Dropout(0.4)(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient * x, y)


def test_a_seed_fixes_the_mask_and_evaluation_drops_nothing() -> None:
    layer, x = Dropout(0.3), torch.randn(5, 9)
    torch.manual_seed(3)
    first = layer(x)
    torch.manual_seed(3)
    assert torch.equal(first, layer(x)) and not torch.equal(first, layer(x))
    assert layer.eval()(x) is x and Dropout(0.0)(x) is x


def test_random_bytes_are_even_in_every_place_of_a_word() -> None:
    values = random_bytes(8 * 40000).view(-1, 8).float()
    torch.testing.assert_close(values.mean(0), torch.full((8,), 127.5), atol=2.0, rtol=0)
    assert values.min() == 0 and values.max() == 255


def test_small_shares_still_drop_something() -> None:
    assert (Dropout(0.001)(torch.ones(10000)) == 0).any()
