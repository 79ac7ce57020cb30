"""python -m tests.soak [CAMPAIGN ...] --count N --seed S: see the package's docstring."""

from __future__ import annotations

import argparse
import os
import sys

from tests.soak.campaigns import CAMPAIGNS
from tests.soak.runner import PROGRESS_FOLDER, run_campaign


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("campaigns", nargs="*", metavar="CAMPAIGN", help=", ".join(CAMPAIGNS))
    parser.add_argument("--count", type=int, help="units of each campaign (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="another seed has other cases")
    parser.add_argument("--restart", action="store_true", help="forget the stored progress")
    options = parser.parse_args()
    unknown = [name for name in options.campaigns if name not in CAMPAIGNS]
    if unknown:
        parser.error(f"{unknown[0]} is not a campaign: choose from {', '.join(CAMPAIGNS)}")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    failed = False
    for name in options.campaigns or CAMPAIGNS:
        if options.restart:
            (PROGRESS_FOLDER / f"{name}-{options.seed}.json").unlink(missing_ok=True)
        progress = run_campaign(name, options.count, options.seed)
        failed |= bool(progress.failures)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
