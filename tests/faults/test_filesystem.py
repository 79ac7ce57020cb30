"""The model file system loses exactly what was not synced: sequences that are known to be wrong
lose data under one of the loss models, and the right one under none."""

from __future__ import annotations

import pytest

from .filesystem import (
    ROOT,
    Create,
    Link,
    Loss,
    MakeFolder,
    MakeSymlink,
    Remove,
    Rename,
    Sync,
    SyncAll,
    Truncate,
    Write,
    hash_tree,
    read_tree,
    replay,
    write_tree,
)

OLD = {"a": b"old"}
NEW_FILE = [Create(".new-a", 9), Write(9, 0, b"new!")]
RENAME = Rename(".new-a", "a")


def after(operations, initial=OLD):
    """The trees of the three loss models."""
    file_system = replay(initial, operations)
    return tuple(file_system.tree(loss) for loss in (Loss.KILL, Loss.DATA, Loss.ALL))


def test_write_sync_rename_sync_is_durable():
    new = {"a": b"new!"}
    assert after([*NEW_FILE, Sync(9), RENAME, Sync(ROOT)]) == (new, new, new)


def test_rename_without_fsync_of_the_file_loses_old_and_new_content():
    assert after([*NEW_FILE, RENAME]) == ({"a": b"new!"}, {"a": b""}, OLD)
    assert after([*NEW_FILE, RENAME, Sync(ROOT)])[1:] == ({"a": b""}, {"a": b""})


def test_rename_without_fsync_of_the_folder_is_undone():
    new = {"a": b"new!"}
    assert after([*NEW_FILE, Sync(9), RENAME]) == (new, new, OLD)


def test_a_temporary_file_is_seen_until_it_is_renamed():
    kill, data, everything = after(NEW_FILE)
    assert kill == {**OLD, ".new-a": b"new!"}
    assert data == {**OLD, ".new-a": b""}
    assert everything == OLD


def test_overwriting_in_place_loses_the_old_content():
    operations = [Truncate(1, 0), Write(1, 0, b"new!")]
    assert after(operations) == ({"a": b"new!"}, {"a": b""}, OLD)
    assert after([*operations, Sync(1)]) == ({"a": b"new!"},) * 3


def test_an_append_loses_only_what_was_appended():
    operations = [Write(1, 3, b"er"), Sync(1), Write(1, 5, b", oldest")]
    assert after(operations) == ({"a": b"older, oldest"}, {"a": b"older"}, {"a": b"older"})


def test_a_new_folder_is_lost_until_its_parent_is_synced():
    inside = [MakeFolder("f", 9), Create("f/x", 10), Write(10, 0, b"1"), Sync(10), Sync(9)]
    full = {"f": None, "f/x": b"1"}
    assert after(inside, {}) == (full, full, {})
    assert after([*inside, Sync(ROOT)], {}) == (full, full, full)
    names_unsynced = [operation for operation in inside if operation != Sync(9)]
    assert after([*names_unsynced, Sync(ROOT)], {})[2] == {"f": None}


def test_a_renamed_folder_keeps_what_was_synced_in_it():
    filled = [MakeFolder(".new-f", 9), Create(".new-f/x", 10), Write(10, 0, b"1")]
    renamed = [*filled, Rename(".new-f", "f"), Sync(ROOT)]
    assert after(renamed, {}) == ({"f": None, "f/x": b"1"}, {"f": None, "f/x": b""}, {"f": None})


def test_a_removal_is_undone_until_the_folder_is_synced():
    assert after([Remove("a")]) == ({}, {}, OLD)
    assert after([Remove("a"), Sync(ROOT)]) == ({}, {}, {})
    assert after([Remove("a"), Create("a", 9), Write(9, 0, b"b"), Sync(9)])[2] == OLD


def test_a_rename_between_folders_is_durable_in_both_or_in_neither():
    initial = {"f": None, "g": None, "f/x": b"1"}
    moved = {"f": None, "g": None, "g/x": b"1"}
    number = {path: n for n, path in enumerate(sorted(initial), 1)}
    assert after([Rename("f/x", "g/x")], initial)[2] == initial
    for folder in ("f", "g"):
        assert after([Rename("f/x", "g/x"), Sync(number[folder])], initial)[2] == moved


def test_exchange_links_and_symbolic_links():
    initial = {"a": b"1", "b": b"2"}
    assert after([Rename("a", "b", is_exchange=True)], initial)[0] == {"a": b"2", "b": b"1"}
    linked = [Link("c", 1), Write(1, 0, b"3"), MakeSymlink("d", 9, "a"), SyncAll()]
    assert after(linked, initial) == ({"a": b"3", "b": b"2", "c": b"3", "d": "a"},) * 3
    assert after([Link("c", 1), Rename("a", "c")], initial)[0] == {**initial, "c": b"1"}


def test_a_write_beyond_the_end_fills_with_zeros():
    assert after([Write(1, 5, b"x")])[0] == {"a": b"old\0\0x"}
    assert after([Write(1, 1, b"xy")])[0] == {"a": b"oxy"}
    assert after([Truncate(1, 5)])[0] == {"a": b"old\0\0"}
    assert Write(1, 7, b"1234567").torn == Write(1, 7, b"123")


def test_creating_a_name_twice_is_an_error_of_the_log():
    with pytest.raises(AssertionError, match="a is created twice"):
        after([Create("a", 9)])


def test_trees_are_written_read_and_compared(tmp_path):
    tree = {"a": b"1", "f": None, "f/b": b"", "f/c": "../a"}
    write_tree(tmp_path, tree)
    assert read_tree(tmp_path) == tree
    assert hash_tree(read_tree(tmp_path)) == hash_tree(tree)
    changed = [{**tree, "a": b"2"}, {**tree, "g": None}, {**tree, "f/c": b"../a"}, {"a": b"1"}]
    assert len({hash_tree(one) for one in [tree, *changed]}) == 5
