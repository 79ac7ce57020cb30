"""The source tree keeps the properties of tests/tree.py, and each of them can be violated."""

from __future__ import annotations

import pytest

from tests.tree import MAX_FILE, MAX_FUNCTION, SourceTree, figures


def test_no_property_of_the_tree_is_violated():
    violations = SourceTree().violations()
    assert not violations, "\n".join(violations)


def test_figures_count_what_they_say(tmp_path):
    write(tmp_path, {"a/__init__.py": '"""x: it."""', "a/x.py": "# why\ndef f(x_BTD): ...\n"})
    values = {one.name: one.value for one in figures(tmp_path)}
    assert values["files without __init__"] == "1"
    assert values["lines in all"] == "3"
    assert values["comments, share of lines"] == "33.3 %"
    assert values["parameters with a shape suffix"] == "1"
    assert values["class names twice"] == "0"


@pytest.mark.parametrize(
    ("files", "violation"),
    [
        ({"a/x.py": "class C: ...", "b/y.py": "class C: ..."}, "class twice: C"),
        ({"a/x.py": "def f():\n class C: ...\nclass C: ..."}, "class twice: C"),
        ({"a/x.py": "", "b/x.py": ""}, "module twice: x"),
        ({"cli/x.py": "", "b/x.py": "", "c/x.py": ""}, "module twice: x"),
        ({"a/__init__.py": "", "a/x.py": ""}, "not in the map of its package: a/x"),
        ({"a/__init__.py": '"""b.x"""', "a/x.py": ""}, "not in the map of its package: a/x"),
        ({"a/__init__.py": '"""xy"""', "a/x.py": ""}, "not in the map of its package: a/x"),
        (
            {"a/__init__.py": "", "a/b/__init__.py": "", "a/_c.py": ""},
            "not in the map of its package: a/b",
        ),
        ({"__init__.py": "", "a/__init__.py": ""}, "not in the map of its package: a"),
        ({"nn/x.py": "t.data_ptr()"}, "address outside native: nn/x.py: data_ptr"),
        ({"nn/x.py": "array.ctypes.data"}, "address outside native: nn/x.py: ctypes"),
        ({"nn/x.py": "from cffi import FFI"}, "address outside native: nn/x.py: cffi"),
        ({"nn/x.py": "import ctypes.util"}, "address outside native: nn/x.py: ctypes"),
        ({"a/x.py": "\n" * MAX_FILE + "y = 1\n"}, f"file over {MAX_FILE} lines: a/x.py"),
        (
            {"a/x.py": "def f():\n" + " y = 1\n" * MAX_FUNCTION},
            f"function over {MAX_FUNCTION} lines: a/x.py: f",
        ),
    ],
)
def test_a_violation_is_found(tmp_path, files, violation):
    write(tmp_path, files)
    assert SourceTree(tmp_path).violations() == [violation]


@pytest.mark.parametrize(
    "files",
    [
        {"bench/peers/x.py": "class C: ...", "bench/peers/y.py": "class C: ...", "a.py": ""},
        {"a/base.py": "", "b/base.py": "", "a/config.py": "", "b/config.py": ""},
        {"cli/x.py": "", "bench/x.py": "", "a/x.py": ""},
        {"a/__init__.py": '"""x: this. b/: that."""', "a/x.py": "", "a/b/__init__.py": ""},
        {"native/x.py": "import ctypes\nt.data_ptr()"},
        {"a/x.py": "y = 1\n" * MAX_FILE},
        {"a/x.py": "def f():\n" + " y = 1\n" * (MAX_FUNCTION - 1)},
    ],
)
def test_what_is_allowed_is_no_violation(tmp_path, files):
    write(tmp_path, files)
    assert SourceTree(tmp_path).violations() == []


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
