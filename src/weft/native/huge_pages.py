"""`huge_page_units`: move weights to memory pages of 2 MB, which a decode step reads faster.

A decode step reads every weight once. In pages of 4 KiB each of them needs an entry of the TLB, and
the processor's prefetchers stop at its end. docs/log/2026-11-19-decode-step.md has measurements.

Linux moves memory to huge pages on request (MADV_COLLAPSE, from 6.1 on). The matrices of a model
are allocated one by one and lie next to each other on the heap, so each aligned range of 2 MB is
moved that consists mostly of weights, with whatever else is in it. Contents and addresses do not
change. Other systems, and Linux set to use no huge pages, are left as they are. A range takes
about 4 ms, more than a short run of a command saves: servers do it between engine steps.

Keys and values stay in small pages: their memory is assigned as it is written, and the kernel may
stall a writer for tens of milliseconds to find a huge page (cache/kv_store.py).
"""

from __future__ import annotations

import ctypes
import functools
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from pathlib import Path

from torch import Tensor

HUGE_PAGE = 2 << 20
MADV_COLLAPSE = 25
MIN_WEIGHTS = HUGE_PAGE // 2
"""Bytes of weights in a range from which it is moved."""
SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def huge_page_units(tensors: Iterable[Tensor]) -> Generator[None, None, int]:
    """Move tensors to huge pages as far as possible, one range between two yields; returns the
    bytes of all ranges moved. The tensors must not be freed meanwhile."""
    collapse, num_moved = collapse_function(), 0
    if collapse is None:
        return 0
    for index, size in bytes_by_range(tensors).items():
        if size >= MIN_WEIGHTS:
            num_moved += collapse(index * HUGE_PAGE, HUGE_PAGE)
            yield
    return HUGE_PAGE * num_moved


def bytes_by_range(tensors: Iterable[Tensor]) -> Counter[int]:
    """Bytes of the tensors in each aligned range of HUGE_PAGE bytes, by its number."""
    sizes: Counter[int] = Counter()
    addresses = {tensor.data_ptr(): tensor.numel() * tensor.element_size() for tensor in tensors}
    for start, size in addresses.items():
        for index in range(start // HUGE_PAGE, -(-(start + size) // HUGE_PAGE)):
            begin, end = index * HUGE_PAGE, (index + 1) * HUGE_PAGE
            sizes[index] += min(end, start + size) - max(begin, start)
    return sizes


@functools.cache
def collapse_function() -> Callable[[int, int], bool] | None:
    """Moves an aligned range of memory to huge pages, and returns whether it did; None where the
    system has none or uses none."""
    try:
        if "[never]" in SETTING.read_text():
            return None
        madvise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return lambda address, size: madvise(address, size, MADV_COLLAPSE) == 0
