"""`exchange_names`: two files or folders exchange their names in one step.

Python has no function for it; the C library of Linux has renameat2.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from collections.abc import Callable
from pathlib import Path

AT_FDCWD, RENAME_EXCHANGE = -100, 2
"""Paths relative to the working folder; exchange instead of replace."""
UNSUPPORTED = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP}
"""The errno of a kernel or a file system that has no exchange."""


@functools.cache
def renameat2() -> Callable[[int, bytes, int, bytes, int], int] | None:
    """The function of the C library; None where it has none."""
    try:
        function: Callable[[int, bytes, int, bytes, int], int]
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, TypeError, AttributeError):
        return None
    return function


def exchange_names(first: Path, second: Path) -> bool:
    """Exchange the names; False, and nothing has changed, where the system cannot."""
    function = renameat2()
    if function is None:
        return False
    names = os.fsencode(first), os.fsencode(second)
    if function(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number), str(second))
