"""Ranked heads, rollout and logit lens against brute force, word by word."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.engine.tiny import tiny
from weft.core.errors import UsageError
from weft.look.logit_lens import logit_lens
from weft.look.rankings import entropy, find_heads, sharpest_head
from weft.look.recorder import record
from weft.text.tokenizer import Tokenizer
from weft.text.tokenizer_training import TokenizerConfig

TEXT, IT, APPLE = "\u6211\u5403\u4e86\u82f9\u679c\uff0c\u5b83\u5f88\u751c", "\u5b83", "\u82f9\u679c"


@pytest.fixture(scope="module")
def checkpoint():
    return tiny("decoder", position={"kind": "rotary"}, attention={"num_heads": 4}, max_len=80)


@pytest.fixture(scope="module")
def pair():
    return tiny("encoder-decoder", attention={"num_heads": 4}, max_len=80)


def brute_force(weights_TS, rows, groups):
    """Weight of the first group, and its rank: sums over tokens, means over rows, in loops."""
    sums = []
    for group in groups:
        total = 0.0
        for row in rows:
            for key in group:
                total += float(weights_TS[row, key]) / len(rows)
        sums.append(total)
    return sums[0], 1 + sum(one > sums[0] for one in sums[1:])


def groups_of(text, phrase, tokens):
    """Tokens of the phrase, and of each other run of text between punctuation and tokens."""
    start = text.index(phrase)
    end = start + len(phrase)
    chosen = [t.i for t in tokens if t.span[0] < end and t.span[1] > start]
    spans = []
    for token in tokens:
        if not token.is_special and token.i not in chosen and token.span not in spans:
            spans.append(token.span)
    others = [[t.i for t in tokens if t.span == span and not t.is_special] for span in spans]
    return chosen, [chosen, *others]


@pytest.mark.parametrize("kind", ["character", "byte"])
def test_heads_are_ranked_as_by_brute_force(checkpoint, kind):
    """With one token per character, and with three; every token or character is a word."""
    tokenizer = Tokenizer.train([TEXT], TokenizerConfig(kind=kind, min_frequency=1))
    model = tiny(
        "decoder", position={"kind": "rotary"}, attention={"num_heads": 4},
        vocab_size=tokenizer.vocab_size, max_len=80,
    ).model  # fmt: skip
    trace = record(model, tokenizer, TEXT)
    tokens = trace.tokens["src"]
    rows, _ = groups_of(TEXT, IT, tokens)
    keys, groups = groups_of(TEXT, APPLE, tokens)
    assert len(keys) == (2 if kind == "character" else 6)
    found = trace.find(IT, APPLE)
    assert (found.query_tokens, found.key_tokens) == (tuple(rows), tuple(keys))
    assert len(found.heads) == 8
    everything = []
    for one in found.heads:
        weights_TS = trace.array(f"{one.name.prefix}.weights", head=one.name.head)
        everything.append(weights_TS)
        weight, rank = brute_force(weights_TS, rows, groups)
        assert one.weight == pytest.approx(weight, abs=1e-6)
        assert (one.rank, one.num_words) == (rank, len(groups))
    assert [one.weight for one in found.heads] == sorted(
        (one.weight for one in found.heads), reverse=True
    )
    assert found.first == tuple(one for one in found.heads if one.rank == 1)
    weight, rank = brute_force(np.mean(everything, axis=0), rows, groups)
    assert (found.mean.weight, found.mean.rank) == (pytest.approx(weight, abs=1e-6), rank)
    weight, rank = brute_force(rollout(trace, 2), rows, groups)
    assert (found.rollout.weight, found.rollout.rank) == (pytest.approx(weight, abs=1e-5), rank)


def rollout(trace, num_layers):
    """By its formula: each layer half the mean of its heads and half the identity."""
    result = None
    for layer in range(num_layers):
        mean_TT = trace.array(f"decoder.{layer}.attention.weights").mean(0)
        mixed_TT = 0.5 * mean_TT + 0.5 * np.eye(len(mean_TT))
        mixed_TT = mixed_TT / mixed_TT.sum(-1, keepdims=True)
        result = mixed_TT if result is None else mixed_TT @ result
    return result


def test_words_of_source_and_target_are_found_in_cross_attention(pair):
    text, target = "the cat sat on the mat", "a dog ate two apples"
    trace = record(pair.model, pair.tokenizer, text, target)
    cross = trace.find("dog", "cat")
    assert (cross.part, cross.rollout) == ("cross", None)
    assert {str(one.name) for one in cross.heads} == {
        f"cross.{layer}.{head}" for layer in range(2) for head in range(4)
    }
    assert trace.find("cat", "mat").part == "encoder"
    assert trace.find("dog", "apples", part="decoder").heads[0].weight == 0
    assert not trace.find("dog", "apples", part="decoder").first
    with pytest.raises(UsageError, match=r"'the' occurs 2 times in the text\. Use the#1 to the#2"):
        trace.find("cat", "the")
    assert trace.find("cat", "the#2").key_tokens != trace.find("cat", "the#1").key_tokens
    with pytest.raises(UsageError, match="'cow' is not in the text"):
        find_heads(trace, "cat", "cow")
    with pytest.raises(UsageError, match="part is middle"):
        find_heads(trace, "cat", "mat", "middle")


def test_the_lens_is_the_head_after_the_final_norm(checkpoint):
    trace = record(checkpoint.model, checkpoint.tokenizer, TEXT)
    model, lens = checkpoint.model, logit_lens(trace)
    assert trace.lens == lens, "it is cheap, so it is part of the trace"
    for layer in range(2):
        x_TD = torch.from_numpy(trace.array(f"decoder.{layer}.output"))
        with torch.inference_mode():
            p_TV = model.head(model.decoder.norm(x_TD[None]))[0].softmax(-1)
        best = p_TV.topk(5)
        for position, tokens in enumerate(lens.top[layer]):
            assert [one.id for one in tokens] == best.indices[position].tolist()
            assert [one.p for one in tokens] == pytest.approx(
                best.values[position].tolist(), rel=1e-4
            )
    assert [one.id for one in lens.top[-1][-1]] == [
        one.id for one in trace.candidates["decoder"][-1][:5]
    ]
    some = logit_lens(trace, positions=[2])
    assert some.top[0][0] == pytest.approx(lens.top[0][2]) or [t.id for t in some.top[0][0]] == [
        t.id for t in lens.top[0][2]
    ]


def test_a_lens_needs_a_language_model(checkpoint):
    encoder = tiny("encoder", attention={"num_heads": 4})
    with pytest.raises(UsageError, match="needs the LM head"):
        record(encoder.model, encoder.tokenizer, "the cat").logit_lens()


def test_the_keys_of_a_row_and_their_share(checkpoint):
    trace = record(checkpoint.model, checkpoint.tokenizer, TEXT)
    row = len(trace.tokens["src"]) - 1
    weights_S = trace.array("decoder.1.attention.weights", head=2, row=row)
    top = trace.top_keys("decoder", 1, 2, row, number=3)
    ordered = sorted(range(len(weights_S)), key=lambda key: -weights_S[key])
    assert list(top.tokens) == ordered[:3]
    assert top.coverage == pytest.approx(sum(float(weights_S[key]) for key in ordered[:3]))
    assert str(top).startswith(f"3 of {len(weights_S)} keys, covering 0.")
    assert trace.top_keys("decoder", 1, 2, row, number=999).coverage == pytest.approx(1)


def test_entropy_and_the_sharpest_head(checkpoint):
    trace = record(checkpoint.model, checkpoint.tokenizer, TEXT)
    weights_HTS = trace.array("decoder.0.attention.weights")
    expected_HT = torch.distributions.Categorical(torch.from_numpy(weights_HTS)).entropy()
    np.testing.assert_allclose(entropy(weights_HTS), expected_HT.numpy(), atol=1e-5)
    row = len(trace.tokens["src"]) - 1
    best = {}
    for layer in range(2):
        for head in range(4):
            weights_S = trace.array(f"decoder.{layer}.attention.weights", head, row)
            best[f"decoder.{layer}.{head}"] = max(
                weights_S[t.i] for t in trace.tokens["src"] if t.i != row and not t.is_special
            )
    assert str(sharpest_head(trace, "decoder", row)) == max(best, key=best.__getitem__)
