"""The table of campaigns.

run_case(seed)     runs one case and raises if it fails; all randomness comes from the seed
describe(seed)     the case as JSON, independent of the generator of random cases; optional
replay(case)       runs a described case; without it a stored failure is replayed by its seed
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

SEED_STEP = 10**9
"""Cases of a campaign with seed S have the seeds S * SEED_STEP, S * SEED_STEP + 1, ..."""


@dataclass(frozen=True)
class Campaign:
    """One entry of CAMPAIGNS."""

    module: str
    """With `run_case`, and optionally `describe` and `replay`; imported in child processes."""
    count: int
    """Number of units of a whole campaign."""
    unit: str = "cases"
    units_per_case: int = 1
    batch: int = 200
    """Cases of one child process."""
    seconds: float = 10.0
    """Time limit of a case; the process is killed after three times as long, as the machine may
    be busy, and a case that used more processor time than this fails."""

    def run_case(self, seed: int) -> None:
        import_module(self.module).run_case(seed)

    def describe(self, seed: int) -> Any:
        function: Callable[[int], Any] | None = getattr(
            import_module(self.module), "describe", None
        )
        return None if function is None else function(seed)

    def replay(self, failure: dict[str, Any]) -> None:
        """Run a stored failure again."""
        if failure.get("case") is None:
            self.run_case(failure["seed"])
        else:
            import_module(self.module).replay(failure["case"])


CAMPAIGNS: dict[str, Campaign] = {
    "scheduler": Campaign(
        "tests.soak.scheduler", 1_000_000, "steps", units_per_case=1000, batch=50, seconds=60
    ),
    "requests": Campaign(
        "tests.engine.mixed_requests", 10_000, "requests", units_per_case=40, batch=25, seconds=60
    ),
    "kills": Campaign("tests.soak.kills", 100, "kills", batch=20, seconds=60),
    "checkpoints": Campaign("tests.soak.checkpoints", 100_000, batch=1000),
    "http": Campaign("tests.soak.malformed_http", 50_000, batch=2500, seconds=60),
    "memory": Campaign(
        "tests.soak.memory", 100_000, "requests", units_per_case=10_000, batch=10, seconds=300
    ),
    "determinism": Campaign("tests.engine.determinism", 1_000, batch=100, seconds=60),
}
