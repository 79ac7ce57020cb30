"""The trace of a small decoder: stages, arrays, JSON there and back."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from weft.core.errors import UsageError
from weft.core.forward_batch import ForwardBatch
from weft.look.recorder import record, trace_units
from weft.look.trace import Trace
from weft.models.build import build_model
from weft.models.config import ModelConfig
from weft.text.tokenizer import Tokenizer
from weft.text.tokenizer_training import TokenizerConfig

TEXT = "\u6211\u5403\u4e86\u82f9\u679c\uff0c\u5b83\u5f88\u751c"


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train([TEXT], TokenizerConfig(kind="character", min_frequency=1))


@pytest.fixture(scope="module")
def model(tokenizer):
    config = ModelConfig(
        kind="decoder",
        vocab_size=tokenizer.vocab_size,
        width=32,
        num_layers=2,
        max_len=600,
        attention={"kind": "gqa", "num_heads": 4, "num_kv_heads": 2},
        position={"kind": "rotary"},
        feedforward={"kind": "swiglu", "width": 40},
    )
    return build_model(config).eval()


def test_logits_and_layer_outputs_are_those_of_the_model(model, tokenizer):
    trace = record(model, tokenizer, TEXT)
    ids_1T = torch.tensor([[token.id for token in trace.tokens["src"]]])
    with torch.inference_mode():
        logits_TV = model(ForwardBatch(ids_1T))[0].numpy()
    np.testing.assert_allclose(trace.array("decoder.logits"), logits_TV, atol=1e-5)
    best = trace.candidates["decoder"][-1][0]
    assert best.id == logits_TV[-1].argmax() == trace.sampled.id
    assert best.p == pytest.approx(torch.tensor(logits_TV[-1]).softmax(-1).max().item(), rel=1e-5)
    assert all(value < 1e-5 for value in trace.check.values())
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in model.modules())


def test_q_times_k_makes_the_scores_and_weights_of_every_layer(model, tokenizer):
    trace = record(model, tokenizer, TEXT)
    for layer in range(2):
        prefix = f"decoder.{layer}.attention"
        q_HTC, k_KSC = trace.array(f"{prefix}.q"), trace.array(f"{prefix}.k")
        scores_HTS = np.einsum("htc,hsc->hts", q_HTC, k_KSC.repeat(2, axis=0)) / np.sqrt(8)
        np.testing.assert_allclose(trace.array(f"{prefix}.scores"), scores_HTS, atol=1e-5)
        masked = np.where(trace.array(f"{prefix}.mask") > 0, scores_HTS, -np.inf)
        weights_HTS = torch.tensor(masked).softmax(-1).numpy()
        np.testing.assert_allclose(trace.array(f"{prefix}.weights"), weights_HTS, atol=1e-5)


def test_json_has_the_same_numbers(model, tokenizer):
    trace = record(model, tokenizer, TEXT, detail="full")
    data = json.loads(json.dumps(trace.to_json()))
    assert data["schema"] == "weft.trace/1"
    assert data["model"]["kv_heads"] == 2
    assert data["tokens"]["src"][1]["bytes"] == "e68891"
    again = Trace.from_json(data)
    assert again.arrays.keys() == trace.arrays.keys()
    for name, values in trace.arrays.items():
        np.testing.assert_array_equal(again.arrays[name], values)
    assert (again.tokens, again.words, again.candidates) == (
        trace.tokens,
        trace.words,
        trace.candidates,
    )
    assert again.to_json() == trace.to_json()


def test_an_unknown_stage_and_an_index_outside_are_refused(model, tokenizer):
    trace = record(model, tokenizer, TEXT)
    with pytest.raises(UsageError, match=r"no stage 'decoder\.2\.attention\.q'"):
        trace.array("decoder.2.attention.q")
    with pytest.raises(UsageError, match=r"head is 4, but .* has 4: use 0 to 3"):
        trace.array("decoder.0.attention.weights", head=4)


def test_units_do_not_change_the_state_of_torch_or_of_the_model(model, tokenizer):
    units = trace_units(model.train(), tokenizer, TEXT, unit_ms=0.001)
    number = 0
    try:
        while True:
            next(units)
            number += 1
            assert not torch.is_inference_mode_enabled() and model.training
            assert not any(one._forward_hooks or one._forward_pre_hooks for one in model.modules())
    except StopIteration as stop:
        trace = stop.value
    finally:
        model.eval()
    assert number > 2 * 2 * len(trace.tokens["src"])
    whole = record(model, tokenizer, TEXT)
    for name, values in whole.arrays.items():
        np.testing.assert_allclose(trace.arrays[name], values, atol=1e-5)
