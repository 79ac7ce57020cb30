"""Properties that hold for every model, with settings drawn by Hypothesis: causality, padding,
caching, equal results of all kernels, packing and gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.contiguous_cache import ContiguousCache
from weft.core.forward_batch import ForwardBatch
from weft.models.build import AnyModel, build_model
from weft.models.config import ModelConfig
from weft.models.transformer import Decoder, EncoderDecoder
from weft.nn.positions.encodings import POSITIONS

from .settings import POSITION_SETTINGS, configs

CLOSE = {"atol": 2e-5, "rtol": 2e-5}


def fresh(config: ModelConfig) -> AnyModel:
    """A model in eval mode with random weights, including biases and norms."""
    model = build_model(config, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim < 2:
                weight.add_(torch.randn(weight.shape, generator=generator) * 0.1)
    return model.eval()


def ids(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 29, (rows, length), generator=torch.Generator().manual_seed(seed))


def is_length_dependent(config: ModelConfig) -> bool:
    """Whether rotations of earlier keys depend on the length of the text: dynamic RoPE scaling."""
    return config.position.kind == "rotary" and config.position.scaling.kind == "dynamic"


def test_the_strategies_cover_every_position_encoding() -> None:
    assert set(POSITION_SETTINGS) == set(POSITIONS)


@given(config=configs("decoder"), cut=st.integers(1, 10))
def test_a_later_token_changes_no_earlier_output(config: ModelConfig, cut: int) -> None:
    model, length = fresh(config), 8 if is_length_dependent(config) else 11
    before, after, cut = ids(2, 11)[:, :length], ids(2, 11)[:, :length], min(cut, length - 1)
    after[:, cut:] = (after[:, cut:] + 5) % 29
    with torch.no_grad():
        first, second = model(ForwardBatch(before)), model(ForwardBatch(after))
    torch.testing.assert_close(first[:, :cut], second[:, :cut], **CLOSE)
    assert not torch.allclose(first[:, cut], second[:, cut], atol=1e-4)


@given(config=configs("decoder"))
def test_padding_does_not_change_a_decoder(config: ModelConfig) -> None:
    model, ids_BT = fresh(config), ids(3, 11)
    lengths = [11, 6, 1]
    with torch.no_grad():
        padded = model(ForwardBatch(ids_BT, lengths_B=torch.tensor(lengths)))
        for row, length in enumerate(lengths):
            alone = model(ForwardBatch(ids_BT[row : row + 1, :length]))
            torch.testing.assert_close(padded[row, :length], alone[0], **CLOSE)


@given(config=configs("encoder"))
def test_padding_does_not_change_an_encoder(config: ModelConfig) -> None:
    model, ids_BT = fresh(config), ids(3, 11)
    lengths = [11, 6, 1]
    with torch.no_grad():
        padded = model.logits(ForwardBatch(ids_BT, lengths_B=torch.tensor(lengths)))
        for row, length in enumerate(lengths):
            alone = model.logits(ForwardBatch(ids_BT[row : row + 1, :length]))
            torch.testing.assert_close(padded[row, :length], alone[0], **CLOSE)


@given(config=configs("encoder-decoder"))
def test_padding_of_source_and_target_changes_nothing(config: ModelConfig) -> None:
    model = fresh(config)
    source, target = ids(2, 9, seed=3), ids(2, 7, seed=4)
    with torch.no_grad():
        padded = model(
            ForwardBatch(target, lengths_B=torch.tensor([7, 3])),
            ForwardBatch(source, lengths_B=torch.tensor([9, 5])),
        )
        alone = model(ForwardBatch(target[1:, :3]), ForwardBatch(source[1:, :5]))
    torch.testing.assert_close(padded[1, :3], alone[0], **CLOSE)


@settings(max_examples=30)
@given(config=configs("decoder"), data=st.data())
def test_cached_equals_uncached_step_by_step(config: ModelConfig, data: st.DataObject) -> None:
    """Prompts of different lengths, then chunks of new tokens: the outputs equal those of one
    forward pass over the whole sequence."""
    if is_length_dependent(config):
        # keys can be cached up to the original length only
        config = config.with_changes({"position.scaling.original_max_len": 16})
    model = fresh(config)
    assert isinstance(model, Decoder)
    ids_BT = ids(2, 14)
    prompts = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    cache = ContiguousCache(model.kv_specs(), 2, 16)
    stored = [0, 0]
    with torch.no_grad():
        for new in [prompts, (1, 1), (3, 3), (1, 1), (1, 1)]:
            chunk = torch.zeros(2, max(new), dtype=torch.long)
            for row in range(2):
                chunk[row, : new[row]] = ids_BT[row, stored[row] : stored[row] + new[row]]
            lengths_B = None if new[0] == new[1] else torch.tensor(new)
            got = model(ForwardBatch(chunk, lengths_B=lengths_B, cache=cache))
            cache.advance(torch.tensor(new))
            stored = [a + b for a, b in zip(stored, new, strict=True)]
            for row in range(2):
                whole = model(ForwardBatch(ids_BT[row : row + 1, : stored[row]]))
                expected = whole[0, stored[row] - new[row] :]
                torch.testing.assert_close(got[row, : new[row]], expected, **CLOSE)


@given(config=configs("encoder-decoder"))
def test_cached_equals_uncached_with_a_source(config: ModelConfig) -> None:
    model = fresh(config)
    assert isinstance(model, EncoderDecoder)
    source = ForwardBatch(ids(2, 6, seed=3), lengths_B=torch.tensor([6, 4]))
    target = ids(2, 8, seed=4)
    cache = ContiguousCache(model.kv_specs(), 2, 8)
    with torch.no_grad():
        memory_BSD = model.encode(source)
        for t in range(8):
            memory_inputs = {"memory_BSD": memory_BSD, "memory_lengths_B": source.lengths_B}
            got = model(ForwardBatch(target[:, t : t + 1], cache=cache, **memory_inputs))
            cache.advance(1)
            expected = model(ForwardBatch(target[:, : t + 1], **memory_inputs))[:, -1:]
            torch.testing.assert_close(got, expected, **CLOSE)


@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder", "encoder"])
@settings(max_examples=25)
@given(data=st.data())
def test_every_kernel_gives_the_reference_result_in_a_whole_model(
    kind: str, data: st.DataObject
) -> None:
    config = data.draw(configs(kind))
    outputs, gradients = [], []
    for kernel in ("reference", "flash", "sparse", "auto"):
        model = fresh(config.with_changes({"attention.kernel": kernel}))
        batch = ForwardBatch(ids(2, 9), lengths_B=torch.tensor([9, 6]))
        out = model(batch, batch) if isinstance(model, EncoderDecoder) else model(batch)
        is_real = torch.arange(9) < torch.tensor([[9], [6]])
        out = out * is_real[..., None]
        (out**2).mean().backward()
        outputs.append(out.detach())
        gradients.append({n: w.grad for n, w in model.named_parameters() if w.grad is not None})
    for out, gradient in zip(outputs[1:], gradients[1:], strict=True):
        torch.testing.assert_close(out, outputs[0], **CLOSE)
        assert gradient.keys() == gradients[0].keys()
        for name, value in gradient.items():
            torch.testing.assert_close(value, gradients[0][name], msg=name, **CLOSE)


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
@settings(max_examples=25)
@given(data=st.data())
def test_absorbed_equals_expanded(kind: str, data: st.DataObject) -> None:
    config = data.draw(configs(kind)).with_changes({"attention.kind": "mla"})
    results = []
    for form in ("expanded", "absorbed"):
        model = fresh(config.with_changes({"attention.latent.form": form}))
        batch = ForwardBatch(ids(2, 9))
        with torch.no_grad():
            results.append(
                model(batch, batch) if isinstance(model, EncoderDecoder) else model(batch)
            )
    torch.testing.assert_close(results[0], results[1], **CLOSE)


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
@given(data=st.data())
def test_packed_documents_do_not_attend_to_each_other(kind: str, data: st.DataObject) -> None:
    config = data.draw(configs(kind))
    if is_length_dependent(config) or config.attention.pattern.kind == "global":
        return  # both depend on the whole row: its length, and its first token
    model, ids_BT = fresh(config), ids(1, 11)
    documents = torch.tensor([[0] * 4 + [1] * 1 + [2] * 6])
    with torch.no_grad():
        packed = model(ForwardBatch(ids_BT, documents_BT=documents))
        for start, end in [(0, 4), (4, 5), (5, 11)]:
            alone = model(ForwardBatch(ids_BT[:, start:end]))
            torch.testing.assert_close(packed[:, start:end], alone, **CLOSE)


@pytest.mark.parametrize("position", sorted(POSITIONS))
@settings(max_examples=12)
@given(data=st.data())
def test_gradients_agree_with_finite_differences(position: str, data: st.DataObject) -> None:
    """Directional derivative of the loss along a random direction of all weights, in float64."""
    config = data.draw(configs("encoder-decoder", position))
    if config.feedforward.kind == "experts":
        return  # a finite step may change the selected experts (test_mixture_of_experts.py)
    config = config.with_changes({"feedforward": {"kind": "gelu", "width": 20}})  # relu has kinks
    model = fresh(config).double()
    source, target = ForwardBatch(ids(2, 5, seed=3)), ForwardBatch(ids(2, 4, seed=4))

    def loss() -> Tensor:
        return (model(target, source) ** 2).mean()

    weights = list(model.parameters())
    grads = torch.autograd.grad(loss(), weights, allow_unused=True)
    generator = torch.Generator().manual_seed(5)
    steps = [torch.randn(w.shape, generator=generator, dtype=torch.float64) for w in weights]
    expected = sum((g * s).sum() for g, s in zip(grads, steps, strict=True) if g is not None)
    with torch.no_grad():
        values = []
        for sign in (1e-6, -2e-6):
            for weight, s in zip(weights, steps, strict=True):
                weight.add_(s, alpha=sign)
            values.append(loss())
    torch.testing.assert_close((values[0] - values[1]) / 2e-6, expected, atol=1e-6, rtol=1e-5)
