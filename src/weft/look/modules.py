"""Bundles the ES modules of the page: source files -> a few minified scripts.

    split_scripts("app.js", files)     {"app.js": ..., "walk.js": ...}: what is loaded at first,
                                       and each module that it imports when it is needed
    joined_modules("exported.js", files)     one script for all, which loads from `file://`
    compact("app.js", source)          a script or a style sheet as it is sent

A script has each module after those it imports, without import and export statements. This requires
that top-level names are unique across modules, which is checked here and by a test. A compressed
script is a third smaller than its modules, and needs one request. Views are imported dynamically
(`import("./walk.js")`); modules that two views need are part of the first script.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import PurePosixPath

IMPORT = re.compile(
    r"""^import\s*(?:(?P<names>\{[^}]*\})\s*from\s*)?["'](?P<path>[^"']+)["'];?[ \t]*\n""",
    re.MULTILINE,
)
EXPORT = re.compile(r"^export\s+(?=(?:async\s+)?(?:function|class|const|let)\b)", re.MULTILINE)
EXPORTED = re.compile(
    r"^export\s+(?:async\s+)?(?:function\*?|class|const|let)\s+([A-Za-z_$][\w$]*)", re.MULTILINE
)
DECLARATION = re.compile(
    r"^(?:export\s+)?(?:async\s+)?(?:function\*?|class|const|let|var)\s+([A-Za-z_$][\w$]*)",
    re.MULTILINE,
)
LAZY_IMPORT = re.compile(r"""\bawait import\("\./(?P<path>[^"]+)"\)""")
COMMENT = re.compile(r"^[ \t]*/\*.*?\*/[ \t]*\n", re.MULTILINE | re.DOTALL)
LINE_COMMENT = re.compile(r"^[ \t]*//.*\n", re.MULTILINE)
INDENTATION = re.compile(r"^[ \t]+", re.MULTILINE)
LITERAL = re.compile(
    r"""(//[^\n]*"""
    r"""|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\\n])*`"""
    r"""|(?:(?<=[(,=:!&|?;{}\[])|(?<=return))[ ]*/(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n])+"""
    r"""/[a-z]*)"""
)
"""Comments, strings, templates and regular expressions of a script. No template contains another
one, which a test checks."""
SIGN_SPACES = re.compile(r"(?<=[\w\])}]) (?=[={(?:<>&|,;}])|(?<=[=,:;{}(?<>&|\])]) ")
"""Spaces beside signs. Not beside + and -, which could become ++ and --."""
STYLE_SPACES = re.compile(r" (?=[{}>])|(?<=[{};:,>]) ")


def split_scripts(entry: str, page_files: Mapping[str, str]) -> dict[str, str]:
    """The script of the entry, which has what at least two others need, and those that it imports
    on demand."""
    lazy = [
        match["path"]
        for path in dict.fromkeys(imports_first(entry, page_files))
        for match in LAZY_IMPORT.finditer(page_files[path])
    ]
    needed = {path: list(dict.fromkeys(imports_first(path, page_files))) for path in lazy}
    counts = Counter(path for paths in needed.values() for path in paths)
    shared = [path for paths in needed.values() for path in paths if counts[path] > 1]
    first = list(dict.fromkeys([*shared, *imports_first(entry, page_files)]))
    check_names([*first, *(one for paths in needed.values() for one in paths)], page_files)
    scripts, used = {}, set[str]()
    for path in lazy:
        own = [one for one in needed[path] if one not in first]
        names = imported_names(own, first, page_files)
        used |= names
        body = joined(own, page_files) + export_line(EXPORTED.findall(page_files[path]))
        scripts[path] = f'import {{ {", ".join(sorted(names))} }} from "./{entry}";\n{body}'
    return {entry: joined(first, page_files) + export_line(used), **scripts}


def export_line(names: Iterable[str]) -> str:
    return f"\nexport {{ {', '.join(sorted(names))} }};\n"


def imported_names(
    paths: Iterable[str], providers: Container[str], page_files: Mapping[str, str]
) -> set[str]:
    """The names that modules import from some others."""
    return {
        name.strip()
        for path in paths
        for match in IMPORT.finditer(page_files[path])
        if match["path"].removeprefix("./") in providers
        for name in (match["names"] or "").strip("{}").split(",")
        if name.strip()
    }


def joined_modules(entry: str, page_files: Mapping[str, str]) -> str:
    """The source of a module and of all that it imports, as one module."""
    order = list(dict.fromkeys(imports_first(entry, page_files)))
    check_names(order, page_files)
    return joined(order, page_files)


def joined(paths: Iterable[str], page_files: Mapping[str, str]) -> str:
    return "\n".join(without_module_syntax(path, page_files[path]) for path in paths)


def check_names(paths: Iterable[str], page_files: Mapping[str, str]) -> None:
    """Raise an AssertionError for a top-level name of two modules."""
    declared = Counter(
        name for path in dict.fromkeys(paths) for name in DECLARATION.findall(page_files[path])
    )
    repeated = sorted(name for name, count in declared.items() if count > 1)
    if repeated:
        raise AssertionError(f"declared by two modules of the page: {', '.join(repeated)}")


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


def compact(name: str, source: str) -> str:
    """A script or style sheet without comments, indentation and spaces that mean nothing."""
    plain = INDENTATION.sub("", LINE_COMMENT.sub("", COMMENT.sub("", source)))
    if name.endswith(".css"):
        return STYLE_SPACES.sub("", plain)
    parts = LITERAL.split(plain)  # odd ones are literals
    kept = [without_comment(part) if i % 2 else compact_code(part) for i, part in enumerate(parts)]
    return "".join(kept)


def compact_code(code: str) -> str:
    return SIGN_SPACES.sub("", code)


def without_comment(literal: str) -> str:
    return "" if literal.startswith("//") else literal
