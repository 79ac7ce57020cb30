"""The campaigns: a few cases of each, failures of earlier runs, and what the runner does about
cases that fail, crash or hang. A tenth of each campaign is run by `make test-slow`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.soak import campaigns, checkpoint_edits, runner
from tests.soak.campaigns import CAMPAIGNS, Campaign
from tests.soak.runner import FAILURES_FOLDER, run_campaign

FAILURES = sorted(FAILURES_FOLDER.glob("*.json"))


@pytest.mark.parametrize("path", FAILURES, ids=lambda path: path.stem)
def test_a_case_that_failed_once_passes(path: Path) -> None:
    failure = json.loads(path.read_text(encoding="utf-8"))
    CAMPAIGNS[failure["campaign"]].replay(failure)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", CAMPAIGNS)
def test_a_tenth_of_a_campaign_has_no_failure(name: str, tmp_path: Path) -> None:
    progress = run_campaign(name, CAMPAIGNS[name].count // 10, seed=1, folder=tmp_path)
    assert progress.failures == []


PROGRAM = """
import os, time
def run_case(seed):
    print("printed by a case")
    if seed % 10 == 3: raise ValueError("case 3 is wrong")
    if seed % 10 == 5: os._exit(7)
    if seed % 10 == 7: time.sleep(600)
def describe(seed):
    return {"seed": seed}
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Campaign:
    """A campaign whose cases 3, 5 and 7 of ten fail, in three ways."""
    (tmp_path / "soak_cases.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    campaign = Campaign("soak_cases", 10, batch=4, seconds=0.5)
    monkeypatch.setitem(CAMPAIGNS, "small", campaign)
    return campaign


def test_cases_that_fail_crash_or_hang_are_stored_and_the_others_run(
    small: Campaign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "START_SECONDS", 20.0)
    lines: list[str] = []
    progress = run_campaign("small", 10, 2, tmp_path, tmp_path / "failures", lines.append)
    first = 2 * campaigns.SEED_STEP
    assert progress.done == 10 and progress.failures == [first + 3, first + 5, first + 7]
    stored = [json.loads(p.read_text()) for p in sorted((tmp_path / "failures").iterdir())]
    assert [one["seed"] for one in stored] == progress.failures
    assert stored[0]["case"] == {"seed": first + 3} and "case 3 is wrong" in stored[0]["error"]
    assert "ended with exit code 7" in stored[1]["error"]
    assert "no result after" in stored[2]["error"]
    assert lines[-1].startswith("small: 10 of 10 cases, ") and lines[-1].endswith("3 failures")


def test_a_campaign_continues_where_it_stopped(
    small: Campaign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_campaign("small", 3, 0, tmp_path, None).done == 3
    batches: list[tuple[int, int]] = []
    original = runner.run_batch

    def watched(name: str, first: int, count: int) -> Iterator[dict[str, Any]]:
        batches.append((first, count))
        return original(name, first, count)

    monkeypatch.setattr(runner, "run_batch", watched)
    assert run_campaign("small", 3, 0, tmp_path, None).done == 3
    assert batches == []
    assert run_campaign("small", 5, 0, tmp_path, None).done == 5
    assert batches == [(3, 2)]


def test_edits_change_what_they_name(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a": [1, 2], "b": {"c": 3}}')
    cases = [
        (["json", ["a", 1], 5], '{"a": [1, 5], "b": {"c": 3}}'),
        (["json", ["b", "c"], {"$raw": "1e999"}], '{"a": [1, 5], "b": {"c": 1e999}}'),
    ]
    for edit, expected in cases:
        checkpoint_edits.apply_edits(path, [edit])
        assert path.read_text() == expected
    path.write_bytes(b"abcdef")
    edits = [["bytes", 1, "5858"], ["delete", 0, 1], ["insert", 0, "2d"], ["truncate", 4]]
    checkpoint_edits.apply_edits(path, edits)
    assert path.read_bytes() == b"-XXd"
