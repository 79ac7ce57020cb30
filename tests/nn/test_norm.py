"""Norms against their formulas, torch's and Gemma's; rows are independent to the last bit."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from weft.core.errors import ConfigError
from weft.native.library import native
from weft.nn.config import NormConfig
from weft.nn.norm import NORMS, LayerNorm, Norm, RMSNorm, build_norm

B, T, D = 2, 5, 24


def shaken(norm: Norm) -> Norm:
    """The same norm with weights that are not all alike."""
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.add_(torch.randn_like(parameter))
    return norm


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("unit_offset", [False, True])
def test_a_fresh_norm_only_normalises(kind: str, unit_offset: bool) -> None:
    norm = build_norm(NormConfig(kind=kind, unit_offset=unit_offset), D)
    assert type(norm) is NORMS[kind]
    y_BTD = norm(torch.randn(B, T, D) * 7)
    torch.testing.assert_close(y_BTD.pow(2).mean(-1), torch.ones(B, T), atol=1e-3, rtol=0)


@pytest.mark.parametrize("kind", NORMS)
def test_a_row_has_the_same_bits_alone_and_among_others(kind: str) -> None:
    norm, x_BTD = shaken(build_norm(NormConfig(kind=kind), D)), torch.randn(B, T, D)
    assert torch.equal(norm(x_BTD)[1, 3], norm(x_BTD[1:, 3:4])[0, 0])


@pytest.mark.parametrize("kind", NORMS)
def test_statistics_are_float32_where_x_is_not(kind: str) -> None:
    norm, x_BTD = shaken(build_norm(NormConfig(kind=kind), D)), torch.randn(B, T, D).bfloat16()
    y_BTD = norm(x_BTD)
    assert y_BTD.dtype == torch.bfloat16
    assert torch.equal(y_BTD, norm(x_BTD.float()).bfloat16())


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("unit_offset", [False, True])
def test_gradients_are_exact(kind: str, unit_offset: bool) -> None:
    norm = shaken(build_norm(NormConfig(kind=kind, unit_offset=unit_offset), 6)).double()
    x = torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in norm.named_parameters()]

    def run(x: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(norm, dict(zip(names, values, strict=True)), x)

    assert torch.autograd.gradcheck(run, (x, *norm.parameters()))


def test_layernorm_is_torchs() -> None:
    norm, theirs = shaken(build_norm(NormConfig(eps=1e-3), D)), nn.LayerNorm(D, eps=1e-3)
    theirs.load_state_dict(norm.state_dict())
    x_BTD = torch.randn(B, T, D)
    assert torch.equal(norm(x_BTD), theirs(x_BTD))


def test_layernorm_without_bias_has_no_bias() -> None:
    norm = build_norm(NormConfig(bias=False), D)
    assert isinstance(norm, LayerNorm)
    assert list(norm.state_dict()) == ["weight"]
    x_BTD = torch.randn(B, T, D)
    torch.testing.assert_close(norm(x_BTD), nn.LayerNorm(D)(x_BTD))


def test_rmsnorm_is_llamas() -> None:
    norm, theirs = (
        shaken(build_norm(NormConfig(kind="rmsnorm", eps=1e-3), D)),
        LlamaRMSNorm(D, 1e-3),
    )
    assert isinstance(norm, RMSNorm)
    theirs.load_state_dict(norm.state_dict())
    x_BTD = torch.randn(B, T, D)
    torch.testing.assert_close(norm(x_BTD), theirs(x_BTD))


def test_unit_offset_is_gemmas() -> None:
    config = NormConfig(kind="rmsnorm", eps=1e-3, unit_offset=True)
    norm, theirs = shaken(build_norm(config, D)), GemmaRMSNorm(D, 1e-3)
    theirs.load_state_dict(norm.state_dict())
    for dtype in (torch.float32, torch.bfloat16):
        x_BTD = torch.randn(B, T, D).to(dtype)
        torch.testing.assert_close(norm.to(dtype)(x_BTD), theirs.to(dtype)(x_BTD))


def test_the_norm_inside_heads_is_an_rmsnorm_with_the_same_eps() -> None:
    config = NormConfig(kind="layernorm", eps=1e-3, placement="both", unit_offset=True).for_heads()
    assert config == NormConfig(kind="rmsnorm", eps=1e-3, unit_offset=True)
    assert build_norm(config, 8)(torch.randn(B, T, 3, 8)).shape == (B, T, 3, 8)


def test_an_rmsnorm_with_bias_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"bias is True but kind is rmsnorm.*Leave bias out"):
        NormConfig(kind="rmsnorm", bias=True)
    assert NormConfig(kind="rmsnorm", bias=False).has_bias is False


@pytest.mark.parametrize("kind", ["batchnorm", "layernrom"])
def test_an_unknown_norm_lists_the_known_ones(kind: str) -> None:
    with pytest.raises(ConfigError, match=rf"kind is '{kind}': allowed are layernorm, rmsnorm"):
        NormConfig(kind=kind)


@pytest.mark.skipif(native() is None, reason="needs a compiler")
@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("size", [1, 7, 64, 100, 576])
def test_a_row_has_the_same_bits_in_any_company_and_those_of_torch_nearly(
    kind: str, size: int
) -> None:
    norm = build_norm(NormConfig(kind=kind), size)
    x = torch.randn(40, size, generator=torch.Generator().manual_seed(size)) * 3 + 1
    expected = norm(x.double()).float()
    with torch.no_grad():
        together = norm(x)
        torch.testing.assert_close(together, expected, atol=2e-6, rtol=2e-6)
        assert norm(x.view(2, 20, size)).view(40, size).equal(together)
        assert norm(torch.cat((x, x), dim=-1)[:, :size]).equal(together)
        for row in range(0, 40, 7):
            assert norm(x[row : row + 1].clone()).equal(together[row : row + 1])


@torch.no_grad()
def test_the_compiled_norm_refuses_and_steps_aside_as_torch_does() -> None:
    norm, x = build_norm(NormConfig(kind="rmsnorm"), D), torch.randn(3, D)
    y = norm(x)
    with pytest.raises(RuntimeError):
        norm(torch.randn(2, 2 * D))
    torch.testing.assert_close(torch.func.vmap(norm)(x), y)
    with pytest.warns(DeprecationWarning):
        torch.testing.assert_close(torch.jit.trace(norm, x)(x), y)
    try:
        torch.set_default_dtype(torch.float64)
        assert norm(x).equal(y)
    finally:
        torch.set_default_dtype(torch.float32)
