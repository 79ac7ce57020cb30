"""The weights of a trace are those that the serving engine reports for the same tokens, for every
kind of heads, mask and position; a trace in any form gives the same rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.engine.test_attention_rows import MODELS, PROMPT, SOURCE, ask, finish, make
from weft.core.errors import UsageError
from weft.look import recorder
from weft.look.recorder import record, trace_units
from weft.look.trace import Trace
from weft.models.transformer import EncoderDecoder

EXPERTS = {
    "kind": "experts", "num_experts": 4, "experts_per_token": 2, "shared_experts": 1, "width": 12,
}  # fmt: skip


def trace_of(engine, tokens: list[int], **options) -> Trace:
    is_pair = isinstance(engine.model, EncoderDecoder)
    texts = (SOURCE, tokens) if is_pair else (tokens, None)
    return record(engine.model, engine.tokenizer, *texts, **options)


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_those_of_the_serving_engine(name: str) -> None:
    engine = make(name)
    asked = ask(engine)
    for _ in range(11):
        engine.step()
    tokens = list(engine.scheduler.state.groups[asked].first.tokens)
    trace = trace_of(engine, tokens)
    L = trace.model.layers[-1]
    for query in range(len(tokens)):
        rows = engine.attention_of_layers(asked, query, 0, list(range(L)))
        parts = {"attention": rows.weights_LHS, "cross": rows.source_weights_LHS}
        for part, expected_LHS in parts.items():
            for layer in range(L if expected_LHS is not None else 0):
                row_HS = trace.array(f"decoder.{layer}.{part}.weights", row=query)
                expected_HS = expected_LHS[layer].numpy()
                np.testing.assert_allclose(
                    row_HS[:, : expected_HS.shape[1]], expected_HS, atol=1e-5
                )
                assert not row_HS[:, expected_HS.shape[1] :].any()
    assert max(trace.check.values()) < 1e-5
    finish(engine)


@pytest.mark.parametrize("form", ["thumbnails", "keys"])
@pytest.mark.parametrize(
    "name",
    [
        "gqa",
        "mla window, experts",
        *(pytest.param(n, marks=pytest.mark.slow) for n in MODELS if n != "gqa"),
    ],
)
def test_a_reduced_trace_gives_the_same_values(name: str, form: str, monkeypatch) -> None:
    """Each stage whole, one head, one row; blocks of rows are smaller than the text."""
    engine = make_with_experts() if name == "mla window, experts" else make(name)
    tokens = [*PROMPT, *PROMPT[::-1], *PROMPT]
    whole = trace_of(engine, tokens, ablate=[(1, 2)])
    monkeypatch.setattr(recorder, "MAX_INLINE", 6)
    monkeypatch.setattr(recorder, "MAX_INPUTS", 600 if form == "thumbnails" else 6)
    reduced = trace_of(engine, tokens, ablate=[(1, 2)], unit_ms=5e-3)
    assert reduced.limits.form == form and reduced.limits.reduced and reduced.limits.notes
    names = [stage.name for stage in whole.stages if not stage.name.endswith("rollout")]
    assert {stage.name for stage in reduced.stages} >= set(names)
    assert not any("attention" in one for one in reduced.arrays if not one.startswith("mean("))
    for stage in whole.stages:
        if not reduced.has(stage.name):
            assert form == "keys" and stage.name.endswith(".rollout")
            continue
        assert reduced.stage(stage.name).shape == stage.shape, stage.name
        values = whole.array(stage.name)
        close = {"rtol": 1e-5, "atol": 1e-5 * max(1.0, np.abs(values).max())}
        result = reduced.array(stage.name)
        np.testing.assert_allclose(result, values, **close, err_msg=stage.name)
        has_heads = stage.axes[0] in ("head", "kv_head")
        row = stage.shape[1 if has_heads else 0] - 2
        result = reduced.array(stage.name, row=row)
        np.testing.assert_allclose(result, whole.array(stage.name, row=row), **close)
        if has_heads:
            head = stage.shape[0] - 1
            result = reduced.array(stage.name, head=head, row=row)
            np.testing.assert_allclose(result, values[head, row], **close)


def make_with_experts():
    from tests.engine.tiny import tiny
    from weft.engine.config import EngineConfig
    from weft.engine.engine import Engine

    settings = {**MODELS["mla window"], "feedforward": EXPERTS, "dense_layers": 1}
    checkpoint = tiny(**settings)
    return Engine(checkpoint.model, checkpoint.tokenizer, EngineConfig(page_size=4, cache_gib=1e-3))


def test_experts_of_a_trace_make_the_output(monkeypatch) -> None:
    engine = make_with_experts()
    trace = trace_of(engine, list(PROMPT))
    prefix = "decoder.1.feedforward"
    ids_NX = trace.array(f"{prefix}.experts").astype(int)
    assert ids_NX.shape == (len(PROMPT), 2) and (ids_NX < 4).all()
    layer = engine.model.decoder.layers[1].feedforward
    outputs_NXD = trace.array(f"{prefix}.expert_out")
    routed_ND = (outputs_NXD * trace.array(f"{prefix}.expert_weights")[..., None]).sum(1)
    hidden_NF = torch.from_numpy(trace.array(f"{prefix}.hidden"))
    with torch.inference_mode():
        shared_ND = layer.shared.down(hidden_NF).numpy()
    np.testing.assert_allclose(trace.array(f"{prefix}.out"), routed_ND + shared_ND, atol=1e-5)
    gate_NF, up_NF = (torch.from_numpy(trace.array(f"{prefix}.{one}")) for one in ("gate", "up"))
    torch.testing.assert_close(hidden_NF, torch.nn.functional.silu(gate_NF) * up_NF)
    latent_SA, key_SO = (
        trace.array("decoder.0.attention.c_kv"),
        trace.array("decoder.0.attention.k_rope"),
    )
    assert (latent_SA.shape[1], key_SO.shape[1]) == (12, 4)


def test_block_means_are_those_of_the_weights(monkeypatch) -> None:
    engine = make("gqa")
    tokens = [*PROMPT, *PROMPT, *PROMPT][:26]
    whole = trace_of(engine, tokens)
    monkeypatch.setattr(recorder, "MAX_INLINE", 6)
    monkeypatch.setattr("weft.look.part_recorder.MEAN_BLOCKS", 13)
    reduced = trace_of(engine, tokens)
    weights_HTS = whole.array("decoder.1.attention.weights")
    expected = weights_HTS.reshape(4, 13, 2, 13, 2).mean((2, 4))
    name = "mean(decoder.1.attention.weights)"
    np.testing.assert_allclose(reduced.arrays[name], expected, atol=1e-6)
    np.testing.assert_allclose(
        reduced.arrays["decoder.rollout"], whole.arrays["decoder.rollout"], atol=1e-6
    )
    monkeypatch.setattr(recorder, "MAX_INPUTS", 6)
    monkeypatch.setattr("weft.look.part_recorder.MEAN_ROWS", 13)
    sampled = trace_of(engine, tokens)
    expected = weights_HTS[:, 1::2].reshape(4, 13, 13, 2).mean(-1)
    np.testing.assert_allclose(sampled.arrays[name], expected, atol=1e-6)


def test_a_text_that_is_too_long_names_the_window(monkeypatch) -> None:
    engine = make("mha")
    monkeypatch.setattr("weft.look.trace_input.MAX_TOKENS", 8)
    with pytest.raises(UsageError, match=r"has 9 tokens: .* at most 8\. Use --window a:b"):
        trace_units(engine.model, engine.tokenizer, PROMPT)
    part = record(engine.model, engine.tokenizer, PROMPT, window=(2, 9))
    assert [token.id for token in part.tokens["src"]] == list(PROMPT[2:9])
    assert "tokens 2 to 8 of 9" in part.limits.notes[0]
    with pytest.raises(UsageError, match="window is 5:12, but the text has 9 tokens"):
        record(engine.model, engine.tokenizer, PROMPT, window=(5, 12))


@pytest.mark.parametrize("form", ["thumbnails", "keys"])
@pytest.mark.parametrize("name", ["gqa", "source"])
def test_heads_of_a_reduced_trace_are_ranked_alike(name: str, form: str, monkeypatch) -> None:
    engine = make(name)
    tokens = [*PROMPT, *PROMPT[::-1]]
    whole = trace_of(engine, tokens)
    monkeypatch.setattr(recorder, "MAX_INLINE", 6)
    monkeypatch.setattr(recorder, "MAX_INPUTS", 600 if form == "thumbnails" else 6)
    reduced = trace_of(engine, tokens)
    for part in whole.model.parts:
        sides = whole.side_of(part), whole.side_of(part, "key")
        words = [
            f"{whole.text_of(side)[place]}#1" for side, place in zip(sides, (-1, 0), strict=True)
        ]
        expected, found = (one.find(*words, part=part) for one in (whole, reduced))
        assert [(one.name, one.rank) for one in found.heads] == [
            (one.name, one.rank) for one in expected.heads
        ]
        assert [one.weight for one in found.heads] == pytest.approx(
            [one.weight for one in expected.heads], abs=1e-5
        )
