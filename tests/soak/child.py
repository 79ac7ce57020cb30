"""The program of a child process: python -m tests.soak.child CAMPAIGN FIRST COUNT.

CAMPAIGN is the entry of the table as JSON.

Runs the cases with the seeds FIRST, FIRST + 1, ... and writes one line of JSON for each to standard
output: {"seed": ..., "seconds": ..., "error": null or the traceback}. Everything that the cases
print goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback

from tests.soak.campaigns import Campaign

MAX_ERROR = 8000


def outcome(campaign: Campaign, seed: int) -> dict[str, object]:
    """The line of one case."""
    start, error = time.process_time(), None
    try:
        campaign.run_case(seed)
    except Exception:
        error = traceback.format_exc()[-MAX_ERROR:]
    seconds = time.process_time() - start
    if error is None and seconds > campaign.seconds:
        error = f"took {seconds:.1f} s of processor time, more than {campaign.seconds:g} s"
    line: dict[str, object] = {"seed": seed, "seconds": round(seconds, 4), "error": error}
    if error is not None:
        line["case"] = described(campaign, seed)
    return line


def described(campaign: Campaign, seed: int) -> object:
    """The case as JSON; None if that fails too."""
    try:
        return campaign.describe(seed)
    except Exception:
        return None


def main(campaign: Campaign, first: int, count: int) -> None:
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for seed in range(first, first + count):
        channel.write(json.dumps(outcome(campaign, seed)) + "\n")
        channel.flush()


if __name__ == "__main__":
    main(Campaign(**json.loads(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3]))
