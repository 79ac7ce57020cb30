"""The number of files and classes behind a step does not grow (`python -m tests.call_traces`)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

REACHED = {
    "compiled": 33,
    "modules": 45,
    "training": 33,
    "request": 22,
}
"""Counts of the last change that lowered them, and three more files since API keys are served
fairly and steps are timed, and one since streams begin together. Lower a number when a trace prints
a smaller one."""
SLACK = 2
"""Training runs through one more file, library.py, where contention.py finds the CPUs busy."""


@pytest.fixture(scope="module")
def traces():
    command = [sys.executable, "-m", "tests.call_traces", "--json"]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", REACHED)
def test_a_step_runs_through_no_more_files_than_before(traces, name):
    names = traces[name]
    assert 0 < len(names) <= REACHED[name] + SLACK, "\n".join(names)


def test_a_hooked_model_runs_through_its_modules(traces):
    assert "nn/block.py" in traces["modules"]
    assert "nn/block.py" not in traces["compiled"]


def test_classes_of_the_engine_thread_are_counted(traces):
    assert "weft.engine.scheduling.sequence.Sequence" in traces["request"]
    assert "weft.engine.client.Completion" in traces["request"]
