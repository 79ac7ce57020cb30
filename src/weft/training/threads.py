"""The number of threads of a run: a resumed run uses the number it was started with.

Products and sums of torch round differently with another number of threads, so that a resumed run
would end with other weights. run.json stores the number next to the settings, and it is not
compared on resume: runs of earlier versions have none and continue with that of the process.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from weft.core.config import read_settings
from weft.core.errors import DataError

log = logging.getLogger(__name__)

THREADS = "threads"
"""Key in run.json."""


def saved_threads(path: Path) -> int | None:
    """The number in run.json; None: it has none."""
    number = read_settings(path).get(THREADS)
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise DataError(f"{THREADS} is {number!r}: it must be an integer above 0.", path)
    return number


@contextmanager
def threads_of_run(path: Path) -> Iterator[None]:
    """Compute with the number of threads in run.json; afterwards with that of the process."""
    before, number = torch.get_num_threads(), saved_threads(path)
    if number is None or number == before:
        yield
        return
    log.warning(
        "threads=%d requested=%d reason='a run keeps the number of threads it started with, as "
        "results depend on it'",
        number,
        before,
    )
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
