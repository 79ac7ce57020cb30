"""The environment of libgomp: set before torch is imported, never against the user."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.core.test_cpu_limits import machine
from weft.core.errors import UsageError
from weft.core.openmp import (
    MARK,
    SPIN_COUNT,
    check_wait_policy,
    cpu_threads,
    prepare_openmp,
    user_environment,
    wait_policy,
)

SPINS = {"GOMP_SPINCOUNT": str(SPIN_COUNT), MARK: "GOMP_SPINCOUNT"}
PASSIVE = {"OMP_WAIT_POLICY": "passive", MARK: "OMP_WAIT_POLICY"}


def prepared(environ: dict[str, str], root: Path = Path("/no-cgroups")) -> dict[str, str]:
    prepare_openmp(environ, root)
    return environ


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, SPINS),
        ({"WEFT_WAIT": ""}, {"WEFT_WAIT": "", **SPINS}),
        ({"WEFT_WAIT": "adaptive"}, {"WEFT_WAIT": "adaptive", **SPINS}),
        ({"WEFT_WAIT": "spin"}, {"WEFT_WAIT": "spin"}),
        ({"WEFT_WAIT": "passive"}, {"WEFT_WAIT": "passive", **PASSIVE}),
        ({"WEFT_WAIT": "sleepy"}, {"WEFT_WAIT": "sleepy", **SPINS}),
        ({"GOMP_SPINCOUNT": "7"}, {"GOMP_SPINCOUNT": "7"}),
        ({"OMP_WAIT_POLICY": "active"}, {"OMP_WAIT_POLICY": "active"}),
    ],
)
def test_what_the_user_has_not_set_is_set(
    environ: dict[str, str], expected: dict[str, str]
) -> None:
    assert prepared(environ) == expected


def test_a_child_process_chooses_again() -> None:
    assert prepared(prepared({})) == SPINS
    assert prepared({**prepared({}), "WEFT_WAIT": "spin"}) == {"WEFT_WAIT": "spin"}
    passive = prepared({**prepared({}), "WEFT_WAIT": "passive"})
    assert passive == {"WEFT_WAIT": "passive", **PASSIVE}
    # the same value as ours, but the user's
    assert prepared({"OMP_WAIT_POLICY": "passive", "WEFT_WAIT": "spin"}) == {
        "OMP_WAIT_POLICY": "passive",
        "WEFT_WAIT": "spin",
    }


def test_other_programs_do_not_see_what_weft_has_set() -> None:
    assert user_environment(prepared({"A": "b"})) == {"A": "b"}
    assert user_environment({"GOMP_SPINCOUNT": "7"}) == {"GOMP_SPINCOUNT": "7"}


def test_a_quota_limits_the_threads_and_the_user_decides(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/\n", {"cpu.max": "20000 100000\n"})
    if len(os.sched_getaffinity(0)) > 1:
        environ = prepared({}, root)
        assert environ["OMP_NUM_THREADS"] == "1"
        assert environ[MARK] == "GOMP_SPINCOUNT,OMP_NUM_THREADS"
        assert prepared(dict(environ)) == SPINS, "a child process without the quota"
    assert prepared({"OMP_NUM_THREADS": "5"}, root)["OMP_NUM_THREADS"] == "5"


def test_an_unknown_policy_is_refused_with_what_is_allowed() -> None:
    check_wait_policy({})
    check_wait_policy({"WEFT_WAIT": "passive"})
    assert wait_policy({}) == "adaptive"
    with pytest.raises(UsageError, match="WEFT_WAIT is 'sleepy': allowed are adaptive, spin, pass"):
        check_wait_policy({"WEFT_WAIT": "sleepy"})


@pytest.mark.parametrize("public", ["import weft", "from weft.core.device import choose_device"])
def test_every_way_to_import_weft_sets_it_before_torch(public: str) -> None:
    """libgomp prints what it has read when OMP_DISPLAY_ENV is set."""
    names = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY", MARK, "WEFT_WAIT"}
    environ = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-c", f"{public}; import torch; torch.get_num_threads()"],
        env={**environ, "OMP_DISPLAY_ENV": "verbose", "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"GOMP_SPINCOUNT = '{SPIN_COUNT}'" in done.stderr


def test_threads_of_a_block_and_of_its_child_processes() -> None:
    code = (
        "import json, os, weft, torch\n"
        "print(json.dumps([torch.get_num_threads(), os.environ['RAYON_NUM_THREADS']]))"
    )
    before, environ = torch.get_num_threads(), dict(os.environ)
    with cpu_threads(3):
        assert torch.get_num_threads() == 3
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert json.loads(done.stdout) == [3, "3"]
    assert torch.get_num_threads() == before and dict(os.environ) == environ
    with cpu_threads(None):
        assert torch.get_num_threads() == before and dict(os.environ) == environ
