"""Every stage has axes, a formula of its model, and inputs that exist."""

from __future__ import annotations

import re

import pytest

from tests.engine.test_attention_rows import MODELS, PROMPT, SOURCE
from tests.engine.tiny import tiny
from weft.look import stages
from weft.look.recorder import record
from weft.models.transformer import EncoderDecoder

AFTER = {"norm": {"placement": "after"}}
BOTH = {"norm": {"kind": "rmsnorm", "placement": "both"}}
CASES = {
    **MODELS,
    "post": {"kind": "encoder-decoder", "position": {"kind": "sinusoidal"}, **AFTER},
    "both": {"kind": "decoder", "feedforward": {"kind": "swiglu", "width": 12}, **BOTH},
    "bert": {
        "kind": "encoder",
        "position": {"kind": "learned"},
        "embedding": {"norm": True, "segments": 2},
        **AFTER,
    },
}


def trace_of(name):
    checkpoint = tiny(**CASES[name])
    is_pair = isinstance(checkpoint.model, EncoderDecoder)
    texts = (SOURCE, PROMPT) if is_pair else (PROMPT, None)
    return record(checkpoint.model, checkpoint.tokenizer, *texts)


@pytest.mark.parametrize("name", CASES)
def test_inputs_of_every_stage_come_before_it(name):
    trace, before = trace_of(name), set()
    for stage in trace.stages:
        assert len(stage.axes) == len(stage.shape), stage
        assert set(stage.inputs) <= before, stage
        has_input = stage.inputs or re.search(
            r"\.(ids|position|segment|angles|local_angles|bias|mask|rollout)$", stage.name
        )
        assert has_input, stage
        assert stage.stats is not None and stage.stats["min"] <= stage.stats["max"]
        before.add(stage.name)


def test_formulas_are_those_of_the_model():
    def formula(name, stage):
        return trace_of(name).stage(stage).formula

    assert formula("gqa", "decoder.0.attention.q") == "rotate(rmsnorm(x W_Q))"
    assert formula("mla", "decoder.0.attention.k") == "[c_kv W_UK; k_rope]"
    assert formula("alibi", "decoder.0.attention.scores") == "softcap(QK^T/\u221ad_k)"
    assert formula("source", "decoder.0.cross.q") == "x W_Q"
    assert formula("both", "decoder.0.feedforward.hidden") == "silu(x W_gate) * x W_up"
    assert formula("both", "decoder.0.attention.residual") == "x + norm_out"
    assert formula("bert", "encoder.input") == "layernorm(E + P + S)"


def test_inputs_follow_the_placement_of_the_norm():
    post, both = trace_of("post"), trace_of("both")
    assert post.stage("decoder.0.attention.norm").inputs == ("decoder.0.attention.residual",)
    assert post.stage("decoder.0.cross.q").inputs == ("decoder.0.attention.norm",)
    assert post.stage("decoder.0.cross.k").inputs == ("encoder.1.output",)
    assert both.stage("decoder.0.attention.residual").inputs == (
        "decoder.input",
        "decoder.0.attention.norm_out",
    )
    assert both.stage("decoder.1.feedforward.up").inputs == ("decoder.1.feedforward.norm",)


def test_the_list_of_names_in_the_docstring_is_complete():
    text = stages.__doc__
    for names in (stages.STACK_STAGES, stages.LAYER_STAGES, stages.FEEDFORWARD_STAGES):
        assert all(re.search(rf"\.{name}\b", text) for name in names)
    assert all(f"S.i.attention.{name} " in text for name in stages.ATTENTION_STAGES)
