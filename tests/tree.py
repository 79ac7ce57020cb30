"""Properties of the source tree that readers rely on, each as a list of violations.

    python -m tests.tree            print the violations that are not in tests/known_violations.py
    python -m tests.tree --update   write tests/known_violations.py again from the tree

- no class name twice, outside bench/peers/ (its programs run in environments of their own)
- no module name twice, except base and config, outside cli/, bench/ and gguf/vocabularies/
- the docstring of every package names all of its modules and sub-packages
- no addresses outside native/: no `data_ptr` passed on, no ctypes, no cffi
- no file over 500 lines, no function over 60
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "weft"
KNOWN_FILE = Path(__file__).with_name("known_violations.py")

MAX_FILE, MAX_FUNCTION = 500, 60
COMMON_MODULES = {"__init__", "__main__", "base", "config"}
OWN_MODULE_NAMES = ("cli/", "bench/", "checkpoint/gguf/vocabularies/")
"""Packages whose modules are named after commands, workloads and vocabulary kinds."""
OWN_CLASS_NAMES = ("bench/peers/",)
ADDRESS_NAMES = {"data_ptr", "addressof", "ctypes", "cffi"}
ALIASING_CHECKS = {"checkpoint/tensor_source.py", "nn/attention/heads.py"}
"""Files that compare `data_ptr`s to see whether two tensors share memory, and never pass one on."""


class SourceTree:
    """The parsed files below a package, by their path relative to it."""

    def __init__(self, root: Path = SOURCE) -> None:
        self.root = root
        self.files = {
            path.relative_to(root).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
            for path in sorted(root.rglob("*.py"))
        }

    def violations(self) -> list[str]:
        """One line for each violation of any property, sorted."""
        return sorted(
            [
                *self.repeated_classes(),
                *self.repeated_modules(),
                *self.missing_in_maps(),
                *self.addresses(),
                *self.long_files(),
                *self.long_functions(),
            ]
        )

    def repeated_classes(self) -> Iterator[str]:
        places = defaultdict(list)
        for path, tree in self.files.items():
            if not path.startswith(OWN_CLASS_NAMES):
                for node in ast.walk(tree):
                    if isinstance(node, ast.ClassDef):
                        places[node.name].append(path)
        return (f"class twice: {name}" for name, paths in places.items() if len(paths) > 1)

    def repeated_modules(self) -> Iterator[str]:
        places = defaultdict(list)
        for path in self.files:
            name = Path(path).stem
            if name not in COMMON_MODULES and not path.startswith(OWN_MODULE_NAMES):
                places[name].append(path)
        return (f"module twice: {name}" for name, paths in places.items() if len(paths) > 1)

    def missing_in_maps(self) -> Iterator[str]:
        """Modules and sub-packages that the docstring of their package does not name."""
        for path, tree in self.files.items():
            if Path(path).name != "__init__.py":
                continue
            text = ast.get_docstring(tree) or ""
            for name in self.members(Path(path).parent):
                if not re.search(rf"(?<![\w.]){name}(?!\w)", text):
                    yield f"not in the map of its package: {Path(path).parent / name}"

    def members(self, package: Path) -> list[str]:
        """Names of the modules and sub-packages of a package; `_private` and `__main__` are not
        listed."""
        names = set()
        for path in map(Path, self.files):
            if path.parent == package and not path.stem.startswith("_"):
                names.add(path.stem)
            elif path.name == "__init__.py" and path.parent.parent == package != path.parent:
                names.add(path.parent.name)
        return sorted(names)

    def addresses(self) -> Iterator[str]:
        for path, tree in self.files.items():
            if path.startswith("native/"):
                continue
            used = {name for node in ast.walk(tree) for name in names_in(node)} & ADDRESS_NAMES
            if path in ALIASING_CHECKS:
                used.discard("data_ptr")
            yield from (f"address outside native: {path}: {name}" for name in used)

    def long_files(self) -> Iterator[str]:
        for path in self.files:
            num_lines = len((self.root / path).read_text(encoding="utf-8").splitlines())
            if num_lines > MAX_FILE:
                yield f"file over {MAX_FILE} lines: {path}"

    def long_functions(self) -> Iterator[str]:
        for path, tree in self.files.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    assert node.end_lineno is not None
                    if node.end_lineno - node.lineno + 1 > MAX_FUNCTION:
                        yield f"function over {MAX_FUNCTION} lines: {path}: {node.name}"


def names_in(node: ast.AST) -> list[str]:
    """What a node names: an attribute, a variable, or the first part of an imported module."""
    if isinstance(node, ast.Attribute):
        return [node.attr]
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Import):
        return [alias.name.split(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [(node.module or "").split(".")[0], *(alias.name for alias in node.names)]
    return []


def update(violations: list[str]) -> None:
    """Write the list of known violations, one per line and sorted."""
    lines = [f"    {line!r},\n".replace("'", '"') for line in violations]
    head = (
        '"""Violations of tests/tree.py that are still in the tree. Never add one. To remove\n'
        'resolved ones, or after a merge conflict: `python -m tests.tree --update`."""\n\n'
    )
    KNOWN_FILE.write_text(f"{head}KNOWN = [\n{''.join(lines)}]\n")


def main() -> int:
    violations = SourceTree().violations()
    if "--update" in sys.argv[1:]:
        update(violations)
        return 0
    from tests import known_violations

    new = [line for line in violations if line not in known_violations.KNOWN]
    print("\n".join(new) or "no new violations")
    return bool(new)


if __name__ == "__main__":
    sys.exit(main())
