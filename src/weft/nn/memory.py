"""Memory that was freed -> the system, at once.

The C library keeps what lies between pieces that are still used, in the hope of using it again.
While a model is loaded and packed that would be as much as the weights now and then.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

MUCH = 32 << 20
"""Bytes that are worth a call."""


@functools.cache
def trim() -> Callable[[int], int] | None:
    """glibc's malloc_trim; None with other libraries, which have their own ways."""
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, TypeError, AttributeError):
        return None
    return found


def give_back(freed: int = MUCH) -> int:
    """Give back what was freed, once it is much; bytes that wait for the next time. It takes about
    a millisecond."""
    if freed < MUCH:
        return freed
    function = trim()
    if function is not None:
        function(0)
    return 0
