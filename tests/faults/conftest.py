"""Servers that all tests of this package share, and their folders."""

from __future__ import annotations

import os

import pytest

from .harness import Harness, ServerPool
from .scenarios import BY_NAME, Scenario
from .tracer import MISSING, has_strace


def need_strace() -> None:
    """Skip a test where strace is missing; in CI, where .ci/run installs it, the test fails."""
    if not has_strace():
        if os.environ.get("CI"):
            pytest.fail(MISSING)
        pytest.skip(MISSING)


@pytest.fixture(scope="session")
def pool():
    """One server, for the tests of `make test`."""
    need_strace()
    servers = ServerPool()
    yield servers
    servers.close()


@pytest.fixture(scope="session")
def large_pool():
    """One server per core, for slow tests."""
    need_strace()
    servers = ServerPool(os.cpu_count() or 1)
    yield servers
    servers.close()


@pytest.fixture(scope="module")
def harness_of(tmp_path_factory):
    """The harness of a scenario, recorded once per module."""
    made: dict[str, Harness] = {}

    def find(scenario: Scenario | str, pool: ServerPool) -> Harness:
        chosen = BY_NAME[scenario] if isinstance(scenario, str) else scenario
        if chosen.name not in made:
            made[chosen.name] = Harness(chosen, pool, tmp_path_factory.mktemp("faults"))
        return made[chosen.name]

    return find
