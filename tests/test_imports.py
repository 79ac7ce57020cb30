"""Import order: a package imports only packages on lower lines, none on its own line.

Every import counts: at the top of a file, inside a function, under TYPE_CHECKING, relative, or by
`import_module("weft...")`. The message names the line that violates the order.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import weft

SOURCE = Path(__file__).parents[1] / "src" / "weft"

LINES = [
    ["core"],
    ["native"],
    ["text", "nn", "cache", "sampling"],
    ["models"],
    ["checkpoint"],
    ["engine", "training"],
    ["serve", "look", "bench", "demo"],
    ["cli"],
]
LEVEL = {package: level for level, packages in enumerate(LINES) for package in packages}

FREE_FILES = {"__init__", "__main__", "model"}
"""Files beside the packages: they hold the public names and may import any package."""


def violations(root: Path) -> list[str]:
    """'file:line: problem' for each import below `root` that violates the order."""
    lines = []
    for path in sorted(root.rglob("*.py")):
        module = ("weft", *path.relative_to(root).with_suffix("").parts)
        for line, target in imports_of(path, module):
            problem = problem_with(module, target)
            if problem:
                lines.append(f"{path.relative_to(root.parent)}:{line}: {problem}")
    return lines


def imports_of(path: Path, module: tuple[str, ...]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Line and dotted parts of every import of Weft in a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        for target in targets_of(node, module):
            if target[0] == "weft":
                yield node.lineno, target


def targets_of(node: ast.AST, module: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The imports of one node of the syntax tree, each as the parts of its dotted name."""
    if isinstance(node, ast.Import):
        return [tuple(alias.name.split(".")) for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        # in a module and in a package's __init__ alike, one dot is the folder that holds the file
        base = module[: -node.level] if node.level else ()
        base = (*base, *(node.module.split(".") if node.module else ()))
        return [(*base, alias.name) for alias in node.names]
    if isinstance(node, ast.Call) and is_import_module(node.func) and node.args:
        name = node.args[0]
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            return [tuple(name.value.split("."))]
    return []


def is_import_module(function: ast.expr) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in ("import_module", "__import__")


def problem_with(module: tuple[str, ...], target: tuple[str, ...]) -> str | None:
    """Why `module` may not import `target`; None if it may."""
    package, other = module[1], target[1] if len(target) > 1 else ""
    if len(module) == 2:
        return None if package in FREE_FILES else f"{package}.py is in no package"
    if package not in LEVEL:
        return f"the package '{package}' has no line in the order"
    if other == package or target == ("weft", "__version__"):
        return None
    if other not in LEVEL:
        return f"'{package}' imports {'.'.join(target)}: import from its package"
    if LEVEL[other] == LEVEL[package]:
        return f"'{package}' imports '{other}' of the same line"
    return f"'{package}' imports '{other}' above it" if LEVEL[other] > LEVEL[package] else None


def test_every_import_goes_downwards():
    assert violations(SOURCE) == []


@pytest.mark.parametrize(
    ("place", "text", "problem"),
    [
        ("nn/a.py", "import weft.cache.page_pool", "'nn' imports 'cache' of the same line"),
        ("nn/a.py", "from weft.models import config", "'nn' imports 'models' above it"),
        ("nn/a.py", "from weft import models", "'nn' imports 'models' above it"),
        ("nn/a.py", "from weft import ModelConfig", "import from its package"),
        ("nn/a.py", "import weft", "import from its package"),
        ("nn/a.py", "def f():\n    from weft.cli import app", "'nn' imports 'cli' above it"),
        ("nn/a.py", "if TYPE_CHECKING:\n    import weft.bench", "'nn' imports 'bench' above it"),
        ("nn/a.py", "from ..models import config", "'nn' imports 'models' above it"),
        ("nn/b/c.py", "from ... import models", "'nn' imports 'models' above it"),
        ("nn/__init__.py", "from ..text import x", "'nn' imports 'text' of the same line"),
        ("nn/a.py", "import_module('weft.cli.app')", "'nn' imports 'cli' above it"),
        ("attic/a.py", "import weft.core.errors", "'attic' has no line in the order"),
        ("helpers.py", "import weft.core.errors", "helpers.py is in no package"),
    ],
)
def test_an_import_that_violates_the_order_is_named_with_its_line(tmp_path, place, text, problem):
    path = tmp_path / "weft" / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    (line,) = violations(tmp_path / "weft")
    assert line.startswith(f"weft/{place}:{len(text.splitlines())}: ")
    assert problem in line


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("nn/a.py", "from weft.core.errors import WeftError\nimport torch"),
        ("nn/b/c.py", "from . import d\nfrom ..a import e\nfrom ...core import kv"),
        ("nn/b/__init__.py", "from .c import d\nfrom ..a import e"),
        ("cli/a.py", "import weft.bench.report\nfrom weft import __version__"),
        ("__init__.py", "from weft.models.config import ModelConfig"),
    ],
)
def test_an_import_that_keeps_the_order_is_not_named(tmp_path, place, text):
    path = tmp_path / "weft" / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    assert violations(tmp_path / "weft") == []


def test_importing_weft_leaves_torch_alone():
    code = "import weft, weft.cli.app, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", weft.__all__)
def test_every_public_name_can_be_imported(name):
    assert getattr(weft, name) is not None
    assert name in dir(weft)


def test_a_name_that_is_not_public_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'weft' has no attribute 'modelconfig'"):
        _ = weft.modelconfig
