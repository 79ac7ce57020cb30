"""Ablation: changes of the logits against the forward pass written by hand, with the head's columns
of W_O set to zero."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from tests.engine.test_attention_rows import MODELS, PROMPT, SOURCE
from tests.engine.tiny import tiny
from weft.core.errors import UsageError
from weft.core.forward_batch import ForwardBatch
from weft.look.ablation import changes, total_change
from weft.look.recorder import record
from weft.models.transformer import EncoderDecoder


def logits_of(model) -> torch.Tensor:
    ids_1T, source_1S = torch.tensor([PROMPT]), torch.tensor([SOURCE])
    with torch.inference_mode():
        if isinstance(model, EncoderDecoder):
            return model(ForwardBatch(ids_1T), ForwardBatch(source_1S))[0]
        return model(ForwardBatch(ids_1T))[0]


def layer_of(model, head: str):
    part, layer, _ = head.split(".")
    stack = model.encoder if part == "encoder" else model.decoder
    block = stack.layers[int(layer)]
    return block.cross if part == "cross" else block.attention


@pytest.mark.parametrize(
    ("name", "heads"),
    [
        ("gqa", ["decoder.0.3"]),
        ("mla", ["decoder.1.2", "decoder.0.0"]),
        ("source", ["cross.1.1", "encoder.0.2"]),
        ("t5", ["decoder.0.1"]),
    ],
)
def test_changes_of_the_logits_are_those_without_the_head(name, heads):
    checkpoint = tiny(**MODELS[name])
    model, cut = checkpoint.model, copy.deepcopy(checkpoint.model)
    for head in heads:
        layer, number = layer_of(cut, head), int(head.rsplit(".", 1)[1])
        with torch.no_grad():
            size = layer.out.in_features // layer.config.num_heads
            layer.out.weight[:, number * size : (number + 1) * size] = 0
    expected_TV = (logits_of(cut) - logits_of(model)).numpy()
    assert np.abs(expected_TV[-1]).max() > 0.01
    texts = (SOURCE, PROMPT) if isinstance(model, EncoderDecoder) else (PROMPT, None)
    trace = record(model, checkpoint.tokenizer, *texts, ablate=heads)
    np.testing.assert_allclose(trace.array("decoder.logits_delta"), expected_TV, atol=1e-4)
    np.testing.assert_allclose(trace.array("decoder.logits"), logits_of(cut).numpy(), atol=1e-4)
    assert [str(one) for one in trace.ablated] == sorted(heads)
    one = trace.ablated[0]
    assert not trace.array(f"{one.prefix}.heads", head=one.head).any()
    for change in changes(trace):
        assert change.delta == pytest.approx(expected_TV[-1, change.token.id], abs=1e-4)
        assert change.before == pytest.approx(
            logits_of(model)[-1, change.token.id].item(), abs=1e-4
        )
    before, after = (logits_of(one)[-1].double().log_softmax(-1) for one in (model, cut))
    divergence = (before.exp() * (before - after)).sum().item()
    assert total_change(trace) == pytest.approx(divergence, abs=1e-4)


def test_a_head_that_does_not_exist_is_refused():
    checkpoint = tiny(**MODELS["source"])
    for wrong in ("2.0", (0, 4), "cross.0.9", "middle.0.0"):
        with pytest.raises(UsageError, match="there is no head .*decoder has 2 layers"):
            record(checkpoint.model, checkpoint.tokenizer, "the cat", ablate=[wrong])
    for wrong in ("2", "a.b", "1.2.3.4", None):
        with pytest.raises(UsageError, match=r"it must be LAYER\.HEAD"):
            record(checkpoint.model, checkpoint.tokenizer, "the cat", ablate=[wrong])


def test_changes_need_ablated_heads():
    checkpoint = tiny(**MODELS["gqa"])
    with pytest.raises(UsageError, match="no ablated heads"):
        changes(record(checkpoint.model, checkpoint.tokenizer, "the cat"))
