"""The chunked loss against torch's cross-entropy and KL divergence, value and gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from weft.native.kernels import rdrop_loss_
from weft.native.library import native
from weft.training import loss as module
from weft.training.loss import LossConfig, token_loss
from weft.training.rdrop import rdrop_reference


def draw(N: int = 11, D: int = 6, V: int = 17) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(N, D, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(V, D, generator=generator, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(V, generator=generator, dtype=torch.float64, requires_grad=True)
    return hidden, weight, bias, torch.randint(0, V, (N,), generator=generator)


def plain(logits: Tensor, targets: Tensor, config: LossConfig) -> Tensor:
    """The same loss in torch functions."""
    both = torch.cat((targets, targets)) if config.rdrop else targets
    loss = F.cross_entropy(logits, both, reduction="sum", label_smoothing=config.smoothing)
    if config.rdrop:
        p, q = logits.log_softmax(-1).chunk(2)
        there = F.kl_div(q, p, log_target=True, reduction="sum")
        back = F.kl_div(p, q, log_target=True, reduction="sum")
        loss = loss + config.rdrop / 2 * (there + back)
    return loss


@pytest.mark.parametrize(
    "chunk_elements", [1, 40, 1 << 22], ids=["row by row", "two rows", "whole"]
)
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("config", [LossConfig(), LossConfig(0.1), LossConfig(0.1, rdrop=5.0)])
def test_the_loss_equals_torchs_cross_entropy_and_kl(
    config: LossConfig, has_bias: bool, chunk_elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", chunk_elements)
    hidden, weight, bias, targets = draw(N=12 if config.rdrop else 11)
    inputs = [hidden, weight, bias] if has_bias else [hidden, weight]
    half = targets[:6] if config.rdrop else targets
    both = torch.cat((half, half)) if config.rdrop else targets
    ours = token_loss(hidden, weight, bias if has_bias else None, both, config)
    theirs = plain(F.linear(hidden, weight, bias if has_bias else None), half, config)
    torch.testing.assert_close(ours, theirs)
    for a, b in zip(
        torch.autograd.grad(3 * ours, inputs), torch.autograd.grad(3 * theirs, inputs), strict=True
    ):
        torch.testing.assert_close(a, b)


def test_without_gradients_the_loss_has_no_graph() -> None:
    hidden, weight, _, targets = draw()
    with torch.no_grad():
        loss = token_loss(hidden, weight, None, targets, LossConfig())
    assert not loss.requires_grad


SIZES = [
    # two passes with logits of 1e5 differ by more than float32 can say
    *((LossConfig(0.1), size) for size in (0.01, 1.0, 4.0, 40.0, 1e4)),
    *((LossConfig(0.1, rdrop=5.0), size) for size in (0.01, 1.0, 4.0, 40.0)),
]


@pytest.mark.parametrize(("config", "size"), SIZES)
@pytest.mark.parametrize("V", [90, 96])
def test_logits_of_any_size_are_right_in_float32(config: LossConfig, size: float, V: int) -> None:
    """Small ones need no shift before exp; large ones would overflow without it."""
    hidden, weight, bias, targets = (x.detach() for x in draw(N=40, V=V))
    half = targets[:20] if config.rdrop else targets
    both = torch.cat((half, half)) if config.rdrop else targets
    singles = [(hidden * size).float().requires_grad_(), weight.float().requires_grad_()]
    doubles = [x.detach().double().requires_grad_() for x in singles]
    ours = token_loss(*singles, bias.float(), both, config)
    theirs = plain(F.linear(*doubles, bias), half, config)
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)
    for a, b in zip(
        torch.autograd.grad(ours, singles), torch.autograd.grad(theirs, doubles), strict=True
    ):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4 * size)


@pytest.mark.skipif(native() is None, reason="needs a compiler")
def test_the_compiled_rdrop_loss_equals_the_reference() -> None:
    generator = torch.Generator().manual_seed(5)
    first, second = torch.randn(2, 300, 1003, generator=generator).mul(3)
    targets = torch.randint(0, 1003, (300,), generator=generator)
    with torch.inference_mode():
        theirs = rdrop_reference(first.clone(), second.clone(), targets, 0.1, 4.0)
        losses_N = rdrop_loss_(first, second, targets, 0.1, 4.0 / 2)
    assert losses_N is not None
    torch.testing.assert_close(losses_N.sum(), theirs.loss, rtol=1e-6, atol=0)
    # the gradients were written over the logits
    for a, b in zip((first, second), theirs.grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("target", [-1, 17])
def test_a_target_outside_the_vocabulary_is_refused(target: int) -> None:
    hidden, weight, _, targets = (x.detach() for x in draw(N=4))
    targets = torch.tensor([target, 1, target, 1])
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        token_loss(hidden.float(), weight.float(), None, targets, LossConfig(0.1, rdrop=1.0))


def test_two_passes_need_the_same_targets_of_any_integer_type() -> None:
    hidden, weight, _, targets = (x.detach() for x in draw(N=4))
    hidden, weight, config = hidden.float(), weight.float(), LossConfig(0.1, rdrop=1.0)
    both = torch.cat((targets[:2], targets[:2]))
    loss = token_loss(hidden, weight, None, both, config)
    assert loss == token_loss(hidden, weight, None, both.int(), config)
    with pytest.raises(AssertionError, match="unlike targets"):
        token_loss(hidden, weight, None, torch.tensor([1, 2, 1, 3]), config)


@pytest.mark.parametrize("config", [LossConfig(), LossConfig(0.0, rdrop=1.0)], ids=["one", "two"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_loss_of_nan_stays_nan(config: LossConfig, dtype: torch.dtype) -> None:
    hidden, weight, _, targets = (x.detach() for x in draw(N=12))
    hidden, weight = hidden.to(dtype), weight.to(dtype)
    hidden[2, 1] = torch.nan
    targets = torch.cat((targets[:6], targets[:6]))
    assert token_loss(hidden, weight, None, targets, config).isnan()
