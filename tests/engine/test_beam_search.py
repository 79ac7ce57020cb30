"""Beams as numbers: against a search over every sentence of a small made-up language."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.engine.asking import advance
from weft.core.errors import UsageError
from weft.engine.beam_search import BeamBatch, BeamConfig, BeamSearch
from weft.engine.logits import NextTokenLogits
from weft.engine.scheduling.plan import Forked

V, END = 5, 0


def logits_after(history: list[int], seed: int) -> Tensor:
    """The next token's logits: any function of what was written."""
    place = seed
    for token in history:
        place = place * 31 + token + 1
    generator = torch.Generator().manual_seed(place % 2**31)
    return 2 * torch.randn(V, generator=generator)


def search(config: BeamConfig, limit: int, seed: int, ends: tuple[int, ...] = (END,)) -> BeamSearch:
    beams = BeamSearch(config, limit, ends)
    while not beams.is_done:
        logits_WV = torch.stack([logits_after(history, seed) for history in beams.histories])
        advance([beams], logits_WV)
    return beams


def every_sentence(limit: int, penalty: float, seed: int) -> list[tuple[float, list[int]]]:
    """All sentences of up to `limit` tokens with their scores, best first."""
    result = []
    for length in range(limit + 1):
        for ids in itertools.product(range(1, V), repeat=length):
            total = 0.0
            for i, token in enumerate([*ids, END]):
                logp_V = logits_after(list(ids[:i]), seed).log_softmax(-1)
                total += float(logp_V.double()[token])
            result.append((total / (length + 1) ** penalty, list(ids)))
    return sorted(result, key=lambda one: -one[0])


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("seed", range(6))
def test_a_beam_as_wide_as_the_language_finds_the_best_sentences(seed: int, penalty: float) -> None:
    """Wide enough to drop nothing, it ends only when nothing better can come."""
    config = BeamConfig(width=V**3, length_penalty=penalty, num_best=3)
    result = search(config, 3, seed).best()
    best = every_sentence(3, penalty, seed)[:3]
    assert [one.ids for one in result] == [ids for _, ids in best]
    for one, (score, _) in zip(result, best, strict=True):
        assert math.isclose(one.score, score, rel_tol=1e-6)


def every_sentence_with(
    ends: tuple[int, ...], limit: int, seed: int
) -> list[tuple[float, list[int]]]:
    """All sentences with the score of their best end token, best first."""
    words, result = [token for token in range(V) if token not in ends], []
    for length in range(limit + 1):
        for ids in itertools.product(words, repeat=length):
            total = 0.0
            for i, token in enumerate(ids):
                total += float(logits_after(list(ids[:i]), seed).log_softmax(-1).double()[token])
            last_V = logits_after(list(ids), seed).log_softmax(-1).double()
            total += max(float(last_V[end]) for end in ends)
            result.append((total / (length + 1), list(ids)))
    return sorted(result, key=lambda one: -one[0])


@pytest.mark.parametrize("ends", [(0, 3), (1, 2, 4), (0, 1, 2, 3)])
@pytest.mark.parametrize("seed", range(6))
def test_every_end_token_ends_a_sentence(seed: int, ends: tuple[int, ...]) -> None:
    """Only one of them did."""
    config = BeamConfig(width=V**3, num_best=4)
    result = search(config, 3, seed, ends).best()
    best = every_sentence_with(ends, 3, seed)[:4]
    assert [one.ids for one in result] == [ids for _, ids in best]
    for one, (score, _) in zip(result, best, strict=True):
        assert math.isclose(one.score, score, rel_tol=1e-6)


@pytest.mark.parametrize("ends", [(0, 3), (1, 2, 4)])
def test_greedy_search_stops_at_the_first_end_token(ends: tuple[int, ...]) -> None:
    for seed in range(20):
        history: list[int] = []
        token = int(logits_after(history, seed).argmax())
        while len(history) < 4 and token not in ends:
            history.append(token)
            token = int(logits_after(history, seed).argmax())
        (best,) = search(BeamConfig(1), 4, seed, ends).best()
        assert best.ids == history
        last_V = logits_after(history, seed).log_softmax(-1)
        expected = float(last_V[list(ends)].max())
        for i, word in enumerate(history):
            expected += float(logits_after(history[:i], seed).log_softmax(-1)[word])
        assert math.isclose(best.logprob, expected, rel_tol=1e-5)


@pytest.mark.parametrize("width", [1, 2, 4])
def test_searches_with_other_end_tokens_keep_their_bits(width: int) -> None:
    all_ends = [(0,), (0, 3), (), (1, 2, 4)]
    alone = [search(BeamConfig(width), 4, seed, ends) for seed, ends in enumerate(all_ends)]
    together = [BeamSearch(BeamConfig(width), 4, ends) for ends in all_ends]
    seeds = dict(zip(map(id, together), range(4), strict=True))
    while running := [beams for beams in together if not beams.is_done]:
        rows = [logits_after(h, seeds[id(b)]) for b in running for h in b.histories]
        advance(running, torch.stack(rows))
    assert [b.best() for b in together] == [b.best() for b in alone]


def test_a_wider_beam_never_finds_a_worse_plain_sum_than_greedy() -> None:
    for seed in range(20):
        greedy = search(BeamConfig(1, 0.0), 6, seed).best()[0].score
        wide = search(BeamConfig(V**2, 0.0), 6, seed).best()[0].score
        assert wide >= greedy - 1e-9


def test_beam_one_takes_the_best_token_each_time() -> None:
    beams = search(BeamConfig(1), 4, seed=3)
    history: list[int] = []
    while len(history) < 4 and (token := int(logits_after(history, 3).argmax())) != END:
        history.append(token)
    assert beams.best()[0].ids == history


def test_requests_of_one_pass_do_not_change_each_other() -> None:
    alone = [search(BeamConfig(width), 4, seed) for seed, width in ((1, 2), (2, 4), (3, 3))]
    together = [BeamSearch(BeamConfig(width), 4, (END,)) for width in (2, 4, 3)]
    seeds = dict(zip(map(id, together), (1, 2, 3), strict=True))
    while running := [beams for beams in together if not beams.is_done]:
        rows = [logits_after(h, seeds[id(b)]) for b in running for h in b.histories]
        advance(running, torch.stack(rows))
    assert [b.best() for b in together] == [b.best() for b in alone]


def test_rules_of_one_request_do_not_reach_the_others() -> None:
    """In logits as the engine has them, which may be written to in inference mode alone."""
    configs = [BeamConfig(2, banned=(1, 2)), BeamConfig(1), BeamConfig(2, first=3), BeamConfig(1)]
    alone = [search(config, 4, seed) for seed, config in enumerate(configs)]
    together = [BeamSearch(config, 4, (END,)) for config in configs]
    seeds = dict(zip(map(id, together), range(4), strict=True))
    while running := [beams for beams in together if not beams.is_done]:
        with torch.inference_mode():
            rows = [logits_after(h, seeds[id(b)]) for b in running for h in b.histories]
            logits = torch.stack(rows)
        advance(running, logits)
    assert [b.best() for b in together] == [b.best() for b in alone]
    assert not {1, 2} & set(together[0].best()[0].ids) and together[2].best()[0].ids[0] == 3


@pytest.mark.parametrize("ends", [(END,), ()])
def test_greedy_steps_are_those_of_the_general_rule(ends: tuple[int, ...]) -> None:
    nothing: Any = None
    for seed in range(20):
        greedy, general = (BeamSearch(BeamConfig(1), 5, ends) for _ in range(2))
        while not greedy.is_done:
            assert greedy.histories == general.histories and greedy.scores == general.scores
            logits_1V = logits_after(greedy.histories[0], seed)[None]
            logits = NextTokenLogits(nothing, logits_1V, logits_1V)
            batch = BeamBatch([greedy], [1], False)
            batch.choose_greedy(logits)
            (appended,) = batch.results()
            forked = general_step(general, logits)
            if greedy.is_done:
                assert not forked.children
            else:
                assert [child.tokens for child in forked.children] == [appended.tokens]
        assert general.is_done and greedy.finished == general.finished
        assert len(greedy.finished) == 1


def general_step(search: BeamSearch, logits: NextTokenLogits) -> Forked:
    """A step of a search of width 1 by the code for wider ones."""
    batch = BeamBatch([search], [1], False)
    batch.init_beams()
    batch.choose_beams(logits)
    return batch.forked(0)


def test_parents_are_places_of_the_beams_before() -> None:
    beams = BeamSearch(BeamConfig(2), 4, (END,))
    logits = torch.tensor([[-9.0, 3.0, 2.9, 0.0, 0.0]])
    assert advance([beams], logits) == [[0, 0]]
    assert beams.histories == [[1], [2]]
    second = torch.tensor([[-9.0, 0.0, 0.0, 0.0, 0.0], [-9.0, 9.0, 8.9, 0.0, 0.0]])
    assert advance([beams], second) == [[1, 1]]
    assert beams.histories == [[2, 1], [2, 2]]


def test_a_first_token_is_forced_and_costs_nothing() -> None:
    beams = BeamSearch(BeamConfig(2, first=3), 4, (END,))
    advance([beams], torch.randn(1, V))
    assert beams.histories[0] == [3] and beams.scores[0] == 0.0


def test_banned_tokens_are_never_written() -> None:
    beams = BeamSearch(BeamConfig(3, banned=(1, 2)), 3, (END,))
    while not beams.is_done:
        advance([beams], torch.zeros(len(beams.histories), V))
    assert all(not {1, 2} & set(one.ids) for one in beams.finished)


def test_without_an_end_the_limit_ends_it() -> None:
    beams = BeamSearch(BeamConfig(2, num_best=2), 3, ends=())
    while not beams.is_done:
        advance([beams], torch.randn(len(beams.histories), V))
    assert [len(one.ids) for one in beams.best()] == [3, 3]


@pytest.mark.parametrize("width, num_best", [(0, 1), (2, 3), (3, 0)])
def test_impossible_widths_are_refused(width: int, num_best: int) -> None:
    with pytest.raises(UsageError, match=f"beam is {width} and num_best {num_best}"):
        BeamConfig(width, num_best=num_best)


@pytest.mark.parametrize("banned", [[1, 2], np.array([1, 2]), frozenset([1, 2])])
def test_banned_tokens_may_be_any_collection(banned: Any) -> None:
    """A list was a TypeError in the first step."""
    assert BeamConfig(2, banned=banned).banned == (1, 2)
    for wrong in (5, "ab", None):
        with pytest.raises(UsageError, match="banned is .*: it must be a tuple of ids"):
            BeamConfig(2, banned=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("penalty", [-0.5, 1000.0, math.inf, math.nan])
def test_impossible_penalties_are_refused(penalty: float) -> None:
    with pytest.raises(UsageError, match="length_penalty is"):
        BeamConfig(length_penalty=penalty)
