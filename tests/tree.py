"""Properties of the source tree that readers rely on, each as a list of violations.

    python -m tests.tree                     print the violations
    python -m tests.tree --figures [ROOT]    print sizes and habits of a tree, src/weft by default

- no class name twice, outside bench/peers/ (its programs run in environments of their own)
- no module name twice, except base and config, outside cli/, bench/ and gguf/vocabularies/
- the docstring of every package names all of its modules and sub-packages
- no addresses outside native/: no `data_ptr` passed on, no ctypes, no cffi
- no file over 500 lines, no function over 60
"""

from __future__ import annotations

import ast
import io
import re
import statistics
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "weft"

MAX_FILE, MAX_FUNCTION = 500, 60
COMMON_MODULES = {"__init__", "__main__", "base", "config"}
OWN_MODULE_NAMES = ("cli/", "bench/", "checkpoint/gguf/vocabularies/")
"""Packages whose modules are named after commands, workloads and vocabulary kinds."""
OWN_CLASS_NAMES = ("bench/peers/",)
ADDRESS_NAMES = {"data_ptr", "addressof", "ctypes", "cffi"}
ALIASING_CHECKS = {"checkpoint/tensor_source.py"}
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


@dataclass(frozen=True)
class Figure:
    """One number of the table of docs/log, with what it counts."""

    name: str
    value: str


def figures(root: Path) -> list[Figure]:
    """Sizes and habits of a tree, for the comparison of two commits."""
    tree = SourceTree(root)
    sources = {path: (root / path).read_text(encoding="utf-8") for path in tree.files}
    lines = {path: len(text.splitlines()) for path, text in sources.items()}
    modules = {path: num for path, num in lines.items() if Path(path).name != "__init__.py"}
    product = [p for p in sources if not p.startswith(("bench/", "demo/", "training/dates/"))]
    code = sum(count_code(sources[path]) for path in product)
    total = sum(lines.values())
    comments = sum(count_comments(text) for text in sources.values())
    importers = {p for p, text in sources.items() if imports_native(p, text)}
    addresses = {line.split(": ")[1] for line in tree.addresses()}
    suffixed = [name for one in tree.files.values() for name in parameters(one) if SUFFIX(name)]
    shape_checks = sum(text.count("check_shapes(") for text in sources.values())
    anys = {p: len(re.findall(r"\bAny\b", text)) for p, text in sources.items()}
    engine = sum(n for p, n in anys.items() if p.startswith(ENGINE_PACKAGES))
    layers = sum(n for p, n in anys.items() if p.startswith("nn/"))
    return [
        Figure("files without __init__", f"{len(modules)}"),
        Figure("median lines of a file", f"{statistics.median(modules.values()):.0f}"),
        Figure("lines without comments, bench and the dates corpus", f"{code:,}"),
        Figure("lines in all", f"{total:,}"),
        Figure("class names twice", f"{len(list(tree.repeated_classes()))}"),
        Figure("module names twice", f"{len(list(tree.repeated_modules()))}"),
        Figure("importers of the compiled kernels", f"{len(importers)}"),
        Figure("files outside the kernels that handle addresses", f"{len(addresses)}"),
        Figure("comments, share of lines", f"{100 * comments / total:.1f} %"),
        Figure("check_shapes calls", f"{shape_checks}"),
        Figure("parameters with a shape suffix", f"{len(suffixed)}"),
        Figure("Any in engine, cache, models, sampling", f"{engine}"),
        Figure("Any in nn", f"{layers}"),
    ]


ENGINE_PACKAGES = ("engine/", "cache/", "models/", "sampling/")
SUFFIX = re.compile(r"_[A-Z0-9]*[A-Z]$").search


def count_code(text: str) -> int:
    """Lines that are not a comment; blank lines and docstrings count."""
    return sum(1 for line in text.splitlines() if not line.lstrip().startswith("#"))


def count_comments(text: str) -> int:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(1 for token in tokens if token.type == tokenize.COMMENT)


def imports_native(path: str, text: str) -> bool:
    is_inside = path.startswith(("native/", "nn/native/", "bench/"))
    return not is_inside and bool(re.search(r"^from weft\.(nn\.)?native", text, re.MULTILINE))


def parameters(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield from (one.arg for one in (*node.args.args, *node.args.kwonlyargs))


def main() -> int:
    if sys.argv[1:2] == ["--figures"]:
        root = Path(sys.argv[2]) if len(sys.argv) > 2 else SOURCE
        for one in figures(root):
            print(f"{one.name:52}{one.value:>10}")
        return 0
    violations = SourceTree().violations()
    print("\n".join(violations) or "no violations")
    return bool(violations)


if __name__ == "__main__":
    sys.exit(main())
