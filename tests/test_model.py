"""`weft.Model`: what `weft.load` returns looks into itself, beside requests that it serves."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

import weft
from tests.engine.tiny import tiny_folder
from weft.core.errors import UsageError
from weft.look.recorder import record
from weft.text.tokenizer import Tokenizer
from weft.text.tokenizer_training import TokenizerConfig

SMALL = {"page_size": 4, "cache_gib": 1e-3}
ROTARY = {"position": {"kind": "rotary"}, "max_len": 200}


@pytest.fixture
def decoder(tmp_path):
    with weft.load(tiny_folder(tmp_path / "m", "decoder", **ROTARY), engine=SMALL) as model:
        yield model


def test_look_before_and_after_the_weights_are_packed_gives_the_same_numbers(decoder):
    text = "the cat sat on the mat"
    before = decoder.look(text)
    assert before.model.name == "m" and before.tokens["src"][-1].text.endswith("mat")
    decoder.generate(text, 3, temperature=0)
    after = decoder.look(text)
    assert before.stages[0].name == after.stages[0].name == "decoder.ids"
    for name, values in before.arrays.items():
        np.testing.assert_allclose(after.arrays[name], values, atol=1e-4, err_msg=name)
    best = after.candidates["decoder"][-1][0]
    assert decoder.tokenizer.decode([best.id]) == decoder.generate(text, 1, temperature=0)


def test_a_trace_beside_streams_records_its_own_pass_and_leaves_them_alone(decoder):
    prompts = ["the cat", "a dog ate", "two apples", "the mat"]
    options = {"max_tokens": 100, "temperature": 1.0, "seed": 3}
    expected = [decoder.generate(prompt, **options) for prompt in prompts]
    alone = decoder.look("the cat sat on the mat")
    results = {}

    def stream(prompt):
        results[prompt] = "".join(decoder.generate(prompt, stream=True, **options))

    threads = [threading.Thread(target=stream, args=(prompt,)) for prompt in prompts]
    for thread in threads:
        thread.start()
    traces = [decoder.look("the cat sat on the mat") for _ in range(3)]
    for thread in threads:
        thread.join()
    assert [results[prompt] for prompt in prompts] == expected
    for trace in traces:
        assert trace.tokens == alone.tokens
        for name, values in alone.arrays.items():
            np.testing.assert_array_equal(trace.arrays[name], values, err_msg=name)
    modules = decoder.model.modules()
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in modules)


def test_an_encoder_decoder_translates_first(tmp_path):
    with weft.load(tiny_folder(tmp_path / "m"), engine=SMALL) as model:
        trace = model.look("the cat sat")
        assert trace.target == model.translate(["the cat sat"])[0]
        assert trace.tokens["tgt"][0].id == model.request_builder.target_begin
        given = model.look("the cat sat", "a dog")
        assert given.target == "a dog" and given.model.parts["cross"] == 2
        own = model.look("the cat sat", "a dog", ablate=["cross.0.1"])
        assert np.abs(own.array("decoder.logits_delta")).max() > 1e-3


def test_an_encoder_has_no_logits(tmp_path):
    with weft.load(tiny_folder(tmp_path / "m", "encoder"), engine=SMALL) as model:
        trace = model.look("the cat sat")
        assert not trace.candidates and trace.sampled is None and not trace.has("encoder.logits")
        masked = model.look("the cat sat", task="mlm")
        assert masked.array("encoder.logits").shape == (
            len(masked.tokens["src"]),
            masked.model.vocab,
        )
        with pytest.raises(UsageError, match="task is lm, .* kind encoder: use encode or mlm"):
            model.look("the cat", task="lm")
        with pytest.raises(UsageError, match="there is a target"):
            model.look("the cat", "a dog")


def test_sampling_chooses_the_token_that_generate_writes(decoder):
    for seed in range(3):
        params = weft.SamplingParams(temperature=1.5, seed=seed)
        trace = decoder.look("the cat", sampling=params)
        text = decoder.generate("the cat", 1, temperature=1.5, seed=seed)
        assert decoder.tokenizer.decode([trace.sampled.id]) == text
        assert 0 <= trace.sampled.u < 1
        p = torch.tensor(trace.array("decoder.logits")[-1]).softmax(-1)[trace.sampled.id].item()
        assert trace.sampled.p == pytest.approx(p, rel=1e-4)


def test_an_empty_text_is_refused(decoder):
    tokenizer = Tokenizer.train(["a"], TokenizerConfig(kind="byte", add_begin=False))
    with pytest.raises(UsageError, match="the text has no tokens: it is empty"):
        record(decoder.model, tokenizer, "")
