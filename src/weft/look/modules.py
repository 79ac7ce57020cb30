"""The modules of the page as one script: each after those it imports, without import and export.

    joined_modules("app.js", {"app.js": "...", ...})

That is sound because top-level names are unique across modules, which is checked here and by a
test. One script is a third smaller when compressed than its modules one by one, is there after one
request, and loads from `file://`, which modules do not.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

IMPORT = re.compile(
    r"""^import\s*(?:(?P<names>\{[^}]*\})\s*from\s*)?["'](?P<path>[^"']+)["'];?[ \t]*\n""",
    re.MULTILINE,
)
EXPORT = re.compile(r"^export\s+(?=(?:async\s+)?(?:function|class|const|let)\b)", re.MULTILINE)
DECLARATION = re.compile(
    r"^(?:export\s+)?(?:async\s+)?(?:function\*?|class|const|let|var)\s+([A-Za-z_$][\w$]*)",
    re.MULTILINE,
)
COMMENT = re.compile(r"^[ \t]*/\*.*?\*/[ \t]*\n", re.MULTILINE | re.DOTALL)
LINE_COMMENT = re.compile(r"^[ \t]*//.*\n", re.MULTILINE)
INDENTATION = re.compile(r"^[ \t]+", re.MULTILINE)


def joined_modules(entry: str, page_files: Mapping[str, str]) -> str:
    """The source of a module and of all that it imports, as one module."""
    order = list(dict.fromkeys(imports_first(entry, page_files)))
    declared = Counter(name for path in order for name in DECLARATION.findall(page_files[path]))
    repeated = sorted(name for name, count in declared.items() if count > 1)
    if repeated:
        raise AssertionError(f"declared by two modules of the page: {', '.join(repeated)}")
    return "\n".join(without_module_syntax(path, page_files[path]) for path in order)


def imports_first(
    path: str, page_files: Mapping[str, str], above: tuple[str, ...] = ()
) -> Iterator[str]:
    """The modules that one imports, directly or not, then the module itself."""
    assert path not in above, f"modules import each other: {' -> '.join((*above, path))}"
    for match in IMPORT.finditer(page_files[path]):
        imported = (PurePosixPath(path).parent / match["path"]).as_posix()
        yield from imports_first(imported, page_files, (*above, path))
    yield path


def without_module_syntax(path: str, source: str) -> str:
    """A module's source without the words that only modules may contain."""
    for match in IMPORT.finditer(source):
        assert " as " not in (match["names"] or ""), f"{path} renames an import: {match[0].strip()}"
    plain = EXPORT.sub("", IMPORT.sub("", source))
    left = re.search(r"^(import|export)\b.*", plain, re.MULTILINE)
    assert left is None, f"{path}: cannot be joined: {left and left[0]}"
    return plain.replace("</script", "<\\/script")


def without_comments(source: str) -> str:
    """Modules or styles without comments of whole lines and without indentation."""
    return INDENTATION.sub("", LINE_COMMENT.sub("", COMMENT.sub("", source)))
