from __future__ import annotations

import pytest

from weft.cache.page_pool import PagePool
from weft.cache.page_tables import PageCopy, PageTables, first_readable_block


def tables_for(pool: PagePool, num_slots: int, windows=(None,), owner: str = "a") -> PageTables:
    tables = PageTables(pool, windows, owner)
    fresh = pool.allocate(tables.num_pages_needed(0, num_slots), owner) or []
    assert tables.add_pages(0, num_slots, fresh) == []
    return tables


def write(tables: PageTables, start: int, end: int) -> list[PageCopy]:
    fresh = tables.pool.allocate(tables.num_pages_needed(start, end), tables.owner)
    assert fresh is not None
    return tables.add_pages(start, end, fresh)


def test_pages_are_taken_when_a_slot_needs_them():
    pool = PagePool(20, 4)
    tables = tables_for(pool, 5, (None, 3))
    assert tables.num_blocks == 2 and pool.num_free == 15
    assert tables.num_pages_needed(5, 8) == 0
    assert tables.num_pages_needed(8, 9) == 2


def test_a_fork_copies_the_last_page_when_it_is_written():
    pool = PagePool(20, 4)
    first = tables_for(pool, 6)
    second = first.fork("b", 6)
    assert second.by_group == first.by_group and pool.num_free == 17
    old = first.by_group[0][1]
    assert first.num_pages_needed(6, 7) == 1
    (copy,) = write(first, 6, 7)
    assert copy == PageCopy(old, first.by_group[0][1], rows=2) and copy.target != old
    assert write(second, 6, 7) == [], "the last one that holds it writes into it"
    assert second.by_group[0][1] == old and pool.counts[old] == 1


def test_a_fork_at_a_page_border_copies_nothing():
    pool = PagePool(20, 4)
    first = tables_for(pool, 8)
    second = first.fork("b", 8)
    assert write(first, 8, 9) == write(second, 8, 9) == []
    assert (
        first.by_group[0][:2] == second.by_group[0][:2]
        and first.by_group[0][2] != second.by_group[0][2]
    )


def test_a_fork_leaves_pages_beyond_its_slots_to_the_parent():
    pool = PagePool(20, 4)
    first = tables_for(pool, 12)
    second = first.fork("b", 5)
    assert second.num_blocks == 2 and pool.counts[first.by_group[0][2]] == 1


@pytest.mark.parametrize(
    ("slot", "window", "first"),
    [(0, 5, 0), (7, 5, 0), (8, 5, 1), (11, 5, 1), (12, 5, 2), (100, None, 0), (9, 1, 2)],
)
def test_a_window_reads_its_last_slots_only(slot, window, first):
    # a query at slot 8 with a window of 5 reads slots 4 to 8: block 1 of 4 slots
    assert first_readable_block(slot, window, 4) == first


def test_pages_out_of_the_window_are_freed_once():
    pool = PagePool(30, 4)
    tables = tables_for(pool, 16, (None, 5))
    full, window = (list(table) for table in tables.by_group)
    assert tables.free_out_of_window(12) == window[:2]
    assert tables.free_out_of_window(12) == []
    assert list(tables.by_group[1]) == [0, 0, *window[2:]] and list(tables.by_group[0]) == full
    assert sorted(tables.release()) == sorted(full + window[2:])
    assert pool.num_free == pool.num_usable


def test_a_cached_prefix_is_taken_up_without_what_its_window_has_passed():
    pool = PagePool(30, 4)
    owner = tables_for(pool, 12, (None, 5))
    block_pages = [owner.page_ids(block) for block in range(3)]
    tables = PageTables(pool, (None, 5), "b")
    tables.adopt(block_pages)
    assert list(tables.by_group[0]) == list(owner.by_group[0])
    assert list(tables.by_group[1]) == [0, 0, owner.by_group[1][2]]
    assert pool.counts[owner.by_group[1][0]] == 1 and pool.counts[owner.by_group[1][2]] == 2
