"""`trim_malloc`: return freed memory to the operating system at once.

The C library keeps freed blocks between used ones for later allocations. While a model is loaded
and packed, weight by weight, that can be as much memory as the weights.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

MIN_FREED = 32 << 20
"""Freed bytes that are worth a call."""


@functools.cache
def malloc_trim() -> Callable[[int], int] | None:
    """glibc's malloc_trim; None with other C libraries."""
    try:
        function: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, TypeError, AttributeError):
        return None
    return function


def trim_malloc(freed: int = MIN_FREED) -> int:
    """Return memory to the system if at least MIN_FREED bytes were freed, which takes about a
    millisecond. Returns the freed bytes that are still to be counted next time."""
    if freed < MIN_FREED:
        return freed
    function = malloc_trim()
    if function is not None:
        function(0)
    return 0
