"""Drafts: guesses from what stood before, and results that are the same without them."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weft.engine.speculative import (
    MAX_NGRAM,
    MIN_NGRAM,
    RETRY_AFTER,
    Drafter,
    PromptLookup,
    num_accepted,
)
from weft.sampling.logits_processors import SamplingRow
from weft.sampling.params import SamplingParams
from weft.sampling.sampler import sample

IDS = st.lists(st.integers(0, 3), max_size=40)


def searched(ids: list[int], count: int) -> list[int]:
    """By brute force: the latest earlier occurrence of the longest run at the end."""
    for length in range(MAX_NGRAM, MIN_NGRAM - 1, -1):
        run = ids[-length:]
        for start in range(len(ids) - length - 1, -1, -1):
            if len(run) == length and ids[start : start + length] == run:
                guess = [*ids]
                for place in range(start + length, start + length + count):
                    guess.append(guess[place])
                return guess[len(ids) :]
    return []


@given(IDS, st.integers(1, 9))
def test_the_guess_is_what_followed_the_longest_run_last_time(ids: list[int], count: int) -> None:
    assert PromptLookup(ids).propose(count) == searched(ids, count)


@given(IDS, IDS)
def test_tokens_may_come_one_by_one_or_together(first: list[int], second: list[int]) -> None:
    together, apart = PromptLookup(first + second), PromptLookup(first)
    for token in second:
        apart.extend([token])
    assert (together.ids, together.successor) == (apart.ids, apart.successor)


def test_a_token_is_filed_under_three_runs_at_most() -> None:
    lookup = PromptLookup(range(1000))
    assert len(lookup.successor) <= 1000 * (MAX_NGRAM - MIN_NGRAM + 1)


def test_a_guess_that_reaches_the_present_goes_on_in_itself() -> None:
    assert PromptLookup([1, 2, 3, 1, 2, 3, 1, 2]).propose(7) == [3, 1, 2, 3, 1, 2, 3]
    assert PromptLookup([5, 5, 5]).propose(4) == [5, 5, 5, 5]
    assert PromptLookup([1, 2, 3]).propose(4) == [] == PromptLookup().propose(3)


def test_drafts_hold_up_to_the_first_that_differs() -> None:
    assert num_accepted([1, 2, 3], [1, 2, 3, 4]) == 3
    assert num_accepted([1, 2, 3], [1, 9, 3, 4]) == 1
    assert num_accepted([1], [2, 1]) == 0
    assert num_accepted([], [7]) == 0


class Writer:
    """A model whose logits depend on all tokens before: a few ids are likely, by their hash."""

    def logits(self, ids: list[int]) -> torch.Tensor:
        generator = torch.Generator().manual_seed(hash(tuple(ids[-3:])) % (1 << 30))
        return torch.randn(12, generator=generator) * 4

    def write(self, config: SamplingParams, prompt: list[int], count: int) -> list[int]:
        """Without drafts."""
        output: list[int] = []
        while len(output) < count:
            row = SamplingRow(config, len(prompt) + len(output), prompt, output)
            output.append(int(sample(self.logits([*prompt, *output])[None], [row])))
        return output

    def write_with_drafts(
        self, config: SamplingParams, prompt: list[int], count: int
    ) -> tuple[list[int], int]:
        """The same, and in how many passes."""
        output: list[int] = []
        drafter, passes = Drafter(prompt), 0
        while len(output) < count:
            drafts = drafter.propose(limit=count - len(output) - 1)
            first = SamplingRow(config, len(prompt) + len(output), prompt, output)
            rows = [first.after(drafts[:n]) for n in range(len(drafts) + 1)]
            logits = [self.logits([*prompt, *output, *drafts[:n]]) for n in range(len(rows))]
            output += drafter.observe(drafts, sample(torch.stack(logits), rows).tolist())
            passes += 1
        return output, passes


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0},
        {"temperature": 0.7, "top_p": 0.9},
        {"temperature": 1.3, "presence_penalty": 1.0, "repetition_penalty": 1.2},
        {"temperature": 0, "frequency_penalty": 0.5},
    ],
)
@pytest.mark.parametrize("seed", range(4))
def test_a_text_is_the_same_with_drafts_and_without(settings: dict, seed: int) -> None:
    rng = random.Random(seed)
    prompt = [rng.randrange(12) for _ in range(30)]
    config, writer = SamplingParams(seed=seed, **settings), Writer()
    output, passes = writer.write_with_drafts(config, prompt, 60)
    assert output == writer.write(config, prompt, 60)
    assert passes <= 60


def test_a_text_that_repeats_itself_takes_few_passes() -> None:
    config, writer = SamplingParams(temperature=0), Writer()
    output, passes = writer.write_with_drafts(config, [1, 2, 3], 200)
    assert len(output) == 200 and passes < 80


def test_the_number_of_drafts_grows_with_success_and_falls_to_none() -> None:
    drafter = Drafter([1, 2] * 10, max_drafts=8)
    counts = []
    for _ in range(4):
        drafts = drafter.propose()
        counts.append(len(drafts))
        following = drafter.lookup.propose(len(drafts) + 1)
        assert drafter.observe(drafts, following) == following
    assert counts == [2, 4, 8, 8]
    while drafter.count:
        drafts = drafter.propose()
        wrong = [3 - token for token in drafts]
        assert drafter.observe(drafts, [*wrong, 1]) == wrong[:1]
        drafter.lookup.extend([1, 2] * 10)
    for _ in range(RETRY_AFTER):
        assert drafter.propose() == []
        drafter.observe([], [1])
    assert len(drafter.propose()) == 1


def test_there_is_no_draft_beyond_the_limit() -> None:
    drafter = Drafter([1, 2] * 5)
    assert drafter.propose(limit=0) == [] and len(drafter.propose(limit=1)) == 1
    assert Drafter([1, 2] * 5, max_drafts=0).propose() == []
    with pytest.raises(AssertionError, match="1 chosen for 1 drafts"):
        drafter.observe([1], [1])
