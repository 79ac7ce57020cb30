from __future__ import annotations

import random

from weft.cache.tables import first_block
from weft.cache.windows import readable_blocks


def by_hand(columns: list[list[int]], windows: list[int | None], page_size: int) -> int:
    """Try every length, longest first."""
    for n in range(len(columns), 0, -1):
        needed = [
            columns[block][stripe]
            for stripe, window in enumerate(windows)
            for block in range(first_block(n * page_size, window, page_size), n)
        ]
        if all(needed):
            return n
    return 0


def test_backing_off_finds_the_longest_readable_prefix():
    rng = random.Random(0)
    for _ in range(500):
        windows = [None, rng.randint(1, 12), rng.randint(1, 12)]
        columns = [
            [1, rng.choice([0, 1, 1, 1]), rng.choice([0, 1, 1, 1])]
            for _ in range(rng.randint(0, 12))
        ]
        assert readable_blocks(columns, windows, 3) == by_hand(columns, windows, 3)
