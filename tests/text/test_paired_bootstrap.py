"""The paired bootstrap, compared with a resampling of our own."""

from __future__ import annotations

import random

import numpy as np
import pytest
from sacrebleu import corpus_bleu

from weft.core.errors import DataError
from weft.text.metrics import score
from weft.text.paired_bootstrap import compare_systems

WORD_LIST = "the a man woman dog runs eats sees on in red green house street ball"
WORDS = WORD_LIST.split()


def lines(seed: int, errors: float) -> tuple[list[str], list[str]]:
    """(references, translations of which each word is wrong with a probability)."""
    rng = random.Random(seed)
    references = [" ".join(rng.choices(WORDS, k=9)) for _ in range(40)]
    wrong = [
        " ".join(rng.choice(WORDS) if rng.random() < errors else word for word in line.split())
        for line in references
    ]
    return references, wrong


def test_scores_are_those_of_one_system_and_p_that_of_a_resampling() -> None:
    references, first = lines(1, 0.30)
    _, second = lines(1, 0.33)
    bleu, chrf = compare_systems(first, second, references, num_samples=100)
    plain = score(second, references)
    assert bleu.system == pytest.approx(plain.bleu) and chrf.system == pytest.approx(plain.chrf)
    assert bleu.baseline == pytest.approx(score(first, references).bleu)
    assert "bs:100|seed:12345" in bleu.signature
    rng, differences = np.random.default_rng(7), []
    for _ in range(100):
        rows = rng.integers(len(references), size=len(references))
        parts = ([text[row] for row in rows] for text in (first, second, references))
        a, b, r = parts
        differences.append(corpus_bleu(b, [r]).score - corpus_bleu(a, [r]).score)
    absolute = np.abs(differences)
    observed = abs(bleu.system - bleu.baseline)
    p_value = (np.sum(absolute - absolute.mean() > observed) + 1) / 101
    assert bleu.p_value == pytest.approx(p_value, abs=0.15)


def test_equal_systems_do_not_differ_and_unequal_ones_do() -> None:
    references, good = lines(2, 0.05)
    _, bad = lines(2, 0.6)
    same = compare_systems(good, good, references, num_samples=200)
    assert all(each.p_value > 0.5 and each.system == each.baseline for each in same)
    assert all(
        each.p_value < 0.05 for each in compare_systems(bad, good, references, num_samples=200)
    )


def test_moses_is_in_the_signature() -> None:
    references, first = lines(3, 0.2)
    bleu, chrf = compare_systems(first, first, references, "moses", True, "de", num_samples=50)
    assert "moses:de" in bleu.signature and "moses" not in chrf.signature
    assert bleu.system == pytest.approx(score(first, references, "moses", True, "de").bleu)


def test_different_numbers_of_lines_are_refused() -> None:
    with pytest.raises(DataError, match="1 hypotheses but 2 references"):
        compare_systems(["a", "b"], ["a"], ["a", "b"])
