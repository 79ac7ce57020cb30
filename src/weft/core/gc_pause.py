"""`gc_pause`: a block of code in which Python's cyclic garbage collector does not run.

Building a vocabulary creates a million tuples that are in no cycle; the collector would traverse
them, and everything that torch imported, again and again: a fifth of the time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_pause() -> Iterator[None]:
    """Collect no garbage inside the block, unless the collector was off before anyway."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
