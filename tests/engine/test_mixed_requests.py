"""A few cases of the campaign `requests` of make soak."""

from __future__ import annotations

from tests.engine.mixed_requests import MixedRequests, run_case


def test_whatever_callers_do_everything_is_returned():
    run_case(7)


def test_a_case_has_all_that_it_is_about():
    counts, seed = [0, 0, 0], 100
    while min(counts) == 0 and seed < 112:
        mixed = MixedRequests(seed)
        mixed.run()
        for index, count in enumerate((mixed.num_compared, mixed.num_faults, mixed.num_failed)):
            counts[index] += count
        seed += 1
    assert min(counts) > 0, counts
