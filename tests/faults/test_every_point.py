"""Every crash point of every operation: killed with three kinds of loss, and with a full or failing
disk. `python -m tests.faults` prints the number of points."""

from __future__ import annotations

import pytest

from .filesystem import Loss
from .harness import ERRORS
from .scenarios import SCENARIOS
from .test_harness import check_counts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
NAMES = [scenario.name for scenario in SCENARIOS]
NUM_KILLS = 12
MAX_MISSED = 0.02
"""Share of the injected faults that may meet another call at first."""


@pytest.fixture(scope="module", params=NAMES)
def harness(request, large_pool, harness_of):
    """All tests of a scenario run before the next is recorded: its imports, which the servers take
    over, would change how many calls a recorded command makes outside of the folder."""
    return harness_of(request.param, large_pool)


def test_a_crash_at_every_point_loses_nothing(harness):
    wrong = [
        f"{harness.reproducer(f'--crash {crashed.crashes[0]}')}: {problem}"
        for crashed, problems in harness.pool.map(harness.check_crash, harness.crashed_trees)
        for problem in problems
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("loss", Loss)
def test_what_a_command_has_written_is_durable_when_it_has_ended(harness, loss):
    assert harness.check_durable(loss) == []


def test_an_error_at_every_call_is_one_sentence_and_loses_nothing(harness):
    cases = [(index, error) for index in range(len(harness.points)) for error in ERRORS]
    wrong = [
        f"{harness.reproducer(f'--error {index}:{error}')}: {problem}"
        for (index, error), problems in harness.pool.map(harness.check_error, cases)
        for problem in problems
    ]
    assert not wrong, "\n".join(wrong)
    assert harness.num_missed <= MAX_MISSED * len(cases), f"{harness.num_missed} of {len(cases)}"


def test_real_kills_leave_what_the_model_file_system_says(harness):
    step = max(1, len(harness.points) // NUM_KILLS)
    sample = range(len(harness.points))[::step]
    wrong = [
        f"{harness.reproducer(f'--kill {index}')}: {problem}"
        for index, problems in harness.pool.map(harness.check_kill, sample)
        for problem in problems
    ]
    assert not wrong, "\n".join(wrong)


def test_the_number_of_points_is_what_strace_and_the_kernel_count(harness):
    check_counts(harness, harness.pool)
