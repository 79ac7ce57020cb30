"""Beam search by the engine: against brute force, greedy writing and itself, on tiny models."""

from __future__ import annotations

from itertools import product
from math import inf

import pytest
import torch

from tests.engine.asking import advance, beam_search, generate
from weft.core.errors import DataError
from weft.core.forward_batch import ForwardBatch
from weft.engine.beam_search import BeamConfig, BeamSearch
from weft.models.build import build_model
from weft.models.config import ModelConfig

TINY = {"vocab_size": 4, "width": 16, "num_layers": 2, "max_len": 16, "dropout": 0.0}
SMALL = {"vocab_size": 31, "width": 32, "num_layers": 2, "max_len": 32, "dropout": 0.0}
END = 2
SOURCES = [[3, 1, 3, 0], [1], [0, 3]]


def build(kind="encoder-decoder", sizes=TINY, seed=5, sharpness=3.0, **changes):
    """A tiny model in float64 whose next tokens are far from equally likely."""
    attention = {"num_heads": 4}
    settings = {"kind": kind, "attention": attention, **sizes, **changes}
    model = build_model(ModelConfig.from_dict(settings), seed=seed).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(sharpness if weight.ndim > 1 else 1.0)
    return model


@torch.no_grad()
def logprobs(model, prompt, rows, source=None, end=END):
    """Summed log probability of rows of equal length, each with its end, by one uncached pass."""
    said = torch.tensor([[*ids, *([] if end is None else [end])] for ids in rows])
    before = torch.tensor([prompt]).expand(len(rows), -1)
    batch = ForwardBatch(torch.cat((before, said[:, :-1]), dim=1))
    sources = () if source is None else (ForwardBatch(torch.tensor([source] * len(rows))),)
    logits = model(batch, *sources)[:, len(prompt) - 1 :]
    return logits.log_softmax(-1).gather(2, said[..., None]).sum((1, 2)).tolist()


def brute_force(model, prompt, limit, penalty, source=None):
    """Every sentence of at most `limit` tokens and its score, best first."""
    words = [word for word in range(TINY["vocab_size"]) if word != END]
    scored = []
    for length in range(limit + 1):
        rows = list(map(list, product(words, repeat=length)))
        totals = logprobs(model, prompt, rows, source)
        scored += zip((total / (length + 1) ** penalty for total in totals), rows, strict=True)
    return sorted(scored, reverse=True)


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 1.7])
@pytest.mark.parametrize("seed", [5, 6])
def test_a_beam_as_wide_as_all_sentences_finds_them_all_in_order(penalty, seed):
    model, limit = build(seed=seed), 4
    total = sum(3**length for length in range(limit + 1))
    result = beam_search(
        model, [[1]] * 3, limit, END, total + 1, penalty, SOURCES, num_best=total + 1
    )
    for source, hypotheses in zip(SOURCES, result, strict=True):
        expected = brute_force(model, [1], limit, penalty, source)
        assert [one.ids for one in hypotheses] == [ids for _, ids in expected]
        assert [one.score for one in hypotheses] == pytest.approx([s for s, _ in expected])


@pytest.mark.parametrize("penalty", [0.0, 1.0, 1.7])
def test_stopping_early_never_loses_the_best_sentence(penalty):
    for seed in range(6):
        model = build("decoder", seed=seed)
        (result,) = beam_search(model, [[1, 3]], 4, END, 125, penalty)
        assert result[0].ids == brute_force(model, [1, 3], 4, penalty)[0][1]


def test_a_long_sentence_that_begins_badly_is_waited_for():
    """The next token depends on the last one alone: a table of probabilities."""
    to_0, to_4, to_end = [1.0, 0, 0, 0, 0], [0, 0, 0, 0, 1.0], [0, 0, 1.0, 0, 0]
    table = torch.tensor([to_4, [0, 0, 0.7, 0.3, 0], to_end, to_0, to_end]).log()
    for penalty, best in ((0.0, []), (1.0, [3, 0, 4])):
        beams = BeamSearch(BeamConfig(5, penalty), 8, (END,))
        while not beams.is_done:
            last = [history[-1] if history else 1 for history in beams.histories]
            advance([beams], table[last])
        assert beams.best()[0].ids == best


@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder"])
def test_beam_1_is_greedy(kind):
    prompts = [[1, 4, 5], [1], [1, 9]] if kind == "decoder" else [[1]] * 3
    sources = None if kind == "decoder" else [[7, 8, 9, 10], [11], [12, 13]]
    for seed in range(8):
        model = build(kind, SMALL, seed=seed)
        end = generate(model, prompts, 12, sources=sources)[0][5]
        expected = generate(model, prompts, 12, end, sources=sources)
        for penalty in (0.0, 1.0):
            result = beam_search(model, prompts, 12, end, 1, penalty, sources)
            assert [one.ids for (one,) in result] == expected


@pytest.mark.parametrize("beam", [2, 3, 5])
def test_scores_are_those_of_an_uncached_pass(beam):
    model, sources = build(sizes=SMALL), [[7, 8, 9, 10], [11], [12, 13]]
    result = beam_search(model, [[1]] * 3, 9, END, beam, 0.8, sources, num_best=2)
    for source, hypotheses in zip(sources, result, strict=True):
        for one in hypotheses:
            assert [one.logprob] == pytest.approx(logprobs(model, [1], [one.ids], source))
            assert one.score == pytest.approx(one.logprob / (len(one.ids) + 1) ** 0.8)
        assert hypotheses == sorted(hypotheses, key=lambda one: -one.score)


@pytest.mark.parametrize(
    ("attention", "position"),
    [("mha", "sinusoidal"), ("gqa", "rotary"), ("mla", "alibi"), ("mqa", "bucketed")],
)
def test_a_batch_gives_what_each_sentence_gives_alone(attention, position):
    model = build(sizes=SMALL, attention={"kind": attention}, position={"kind": position})
    sources, limits = [[7, 8, 9, 10], [11], [12, 13], [4, 4, 4]], [3, 14, 7, 10]
    together = beam_search(model, [[1]] * 4, limits, END, 4, sources=sources, num_best=4)
    for source, limit, hypotheses in zip(sources, limits, together, strict=True):
        (alone,) = beam_search(model, [[1]], limit, END, 4, sources=[source], num_best=4)
        assert [one.ids for one in hypotheses] == [one.ids for one in alone]
        assert [one.score for one in hypotheses] == pytest.approx([one.score for one in alone])


def test_prompts_of_different_lengths_share_a_batch():
    model, prompts = build("decoder", SMALL), [[1, 4, 5, 6], [1], [1, 9]]
    together = beam_search(model, prompts, 8, END, 3)
    for prompt, (best,) in zip(prompts, together, strict=True):
        ((alone,),) = beam_search(model, [prompt], 8, END, 3)
        assert best.ids == alone.ids and best.score == pytest.approx(alone.score)


def test_a_wider_beam_finds_better_sentences_on_the_whole():
    models = [build(sizes=SMALL, seed=seed) for seed in range(8)]
    means = []
    for beam in (1, 4, 16):
        result = [beam_search(m, [[1]], 8, END, beam, 0.0, [[7, 8]])[0][0].score for m in models]
        means.append(sum(result) / len(result))
    assert means[0] < means[1] <= means[2]


def test_without_an_end_token_every_beam_runs_to_the_limit():
    model = build("decoder")
    (result,) = beam_search(model, [[1]], 3, None, 64, num_best=64)
    assert len(result) == 4**3 and {len(one.ids) for one in result} == {3}
    rows = list(map(list, product(range(4), repeat=3)))
    every = sorted(zip(logprobs(model, [1], rows, end=None), rows, strict=True), reverse=True)
    assert [one.ids for one in result] == [ids for _, ids in every]


def test_a_sentence_at_its_limit_ends_there():
    model = build(sizes=SMALL)
    with torch.no_grad():
        model.head.weight[END].fill_(-9.0)
    ((best,),) = beam_search(model, [[1]], 5, END, 3, sources=[[7, 8]])
    assert len(best.ids) == 5 and END not in best.ids and -inf < best.score < 0


def test_weights_that_are_no_numbers_are_said():
    model = build()
    with torch.no_grad():
        model.head.weight.fill_(float("nan"))
    with pytest.raises(DataError, match="logits are not finite"):
        beam_search(model, [[1]] * 2, 5, END, 3, sources=SOURCES[:2])
