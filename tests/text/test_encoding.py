"""Truncated, empty and unknown text is counted, and the first truncation is logged."""

import json
import logging

from weft.text.encoding import TextReport


def test_the_summary_names_every_count_that_is_not_zero():
    report = TextReport(limit=7)
    assert report.summary() == "0 lines, 0 tokens."
    report.add(7, cut=3)
    report.add(2, is_empty=True)
    report.add(5, unknown=1)
    report.over_budget = 2
    assert report.summary() == (
        "3 lines, 14 tokens; 1 cut at 7 tokens (3 tokens lost); 1 empty; 1 unknown token; "
        "2 longer than the token budget, each in its own batch."
    )


def test_the_counts_are_plain_values():
    report = TextReport(limit=7)
    report.add(7, cut=3)
    assert json.loads(json.dumps(report.to_dict())) == {
        "lines": 1, "empty": 0, "tokens": 7, "cut_lines": 1, "cut_tokens": 3, "unknown": 0,
        "over_budget": 0, "limit": 7,
    }  # fmt: skip


def test_a_truncation_is_logged_once_with_its_numbers(caplog):
    report = TextReport()
    report.add(7, cut=3)
    with caplog.at_level(logging.WARNING):
        report.warn_once(7)
        report.warn_once(7)
    assert [r.getMessage() for r in caplog.records] == [
        "cut_lines=1 cut_tokens=3 lines=1 max_len=7 logged=once"
    ]
