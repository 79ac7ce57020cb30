"""Rules of the page's files: budget, one place for colors and sizes, safe text, both languages."""

from __future__ import annotations

import colorsys
import gzip
import re
from collections import Counter
from itertools import pairwise

import pytest

from tests.look.page_files import (
    CALL,
    COLOR,
    FILES,
    MAX_FUNCTION,
    MODULES,
    SENT,
    SIZE,
    SIZES_FILE,
    STRINGS,
    STYLES,
    UNSAFE,
    long_functions,
    names_of,
    without_comments,
)
from weft.look.modules import compact, imports_first, split_scripts

KIB = 1024
VIEWS = ("play", "walk", "cache")


@pytest.mark.parametrize("view", VIEWS)
def test_what_a_view_loads_stays_within_the_budget(view):
    code = ["app.js", f"{view}.js", *STYLES]
    strings = ["strings/shell.json", f"strings/{view}.json"]
    assert sum(len(SENT[name]) for name in code) <= 200 * KIB
    assert sum(len(SENT[name]) for name in STRINGS) <= 50 * KIB
    loaded = ["index.html", *code, *strings]
    assert sum(len(gzip.compress(SENT[name], 9)) for name in loaded) <= 70 * KIB


@pytest.mark.parametrize("name", MODULES)
def test_indentation_can_be_left_out(name):
    """No string or template continues on another line."""
    lines = without_comments(MODULES[name]).splitlines()
    assert [line for line in lines if line.count("`") % 2 or line.endswith("\\")] == []


@pytest.mark.parametrize("name", MODULES)
def test_no_template_contains_another(name):
    """So that a regular expression finds the ends of literals, in which spaces are kept."""
    for line in without_comments(MODULES[name]).splitlines():
        for template in re.findall(r"`(?:\\.|[^`\\])*`", line):
            assert template.count("{") == template.count("}"), line


def test_comments_and_spaces_between_signs_are_not_sent():
    source = (
        "/**\n * A.\n */\n// b's\nconst c = (a, b) => a + -b; // it's d\n  e(`// f = ${g} `);\n"
    )
    assert compact("a.js", source) == "const c=(a,b)=>a + -b;\ne(`// f = ${g} `);\n"
    patterns = 'x = / = (a) "/.test(y) ? "( a )" : z / 2 / w;\nif (a) return { b: [c, d] };\n'
    sent = 'x= / = (a) "/.test(y)?"( a )" :z / 2 / w;\nif(a)return{b:[c,d]};\n'
    assert compact("a.js", patterns) == sent
    style = "/* a */\n.b:not(.c) .d > e { color: red; margin: 0 auto; }\n@media (a) and (b) { }\n"
    short = ".b:not(.c) .d>e{color:red;margin:0 auto;}\n@media (a) and (b){}\n"
    assert compact("a.css", style) == short


def test_literals_are_sent_as_they_are_written():
    """Every string, template and pattern of the modules is in a script, unchanged."""
    literal = re.compile(
        r"\"(?:\\.|[^\"\\\n])*\"|`(?:\\.|[^`\\\n])*`|/\[(?:[^\]\\]|\\.)*\][^ ]*/[a-z]*"
    )
    sent = "\n".join(data.decode() for name, data in SENT.items() if name.endswith(".js"))
    imports = re.compile(r"(?m)^import .*\n")
    for name, source in MODULES.items():
        if name == "exported.js":
            continue
        code = imports.sub("", without_comments(source))
        assert [one for one in literal.findall(code) if one not in sent] == [], name


def test_the_page_is_one_script_and_one_for_each_view():
    assert not re.search(rb"(?m)^import\b", SENT["app.js"])
    for view in VIEWS:
        sent = SENT[f"{view}.js"].decode()
        assert re.findall(r"(?m)^import.*from (.*);", sent) == ['"./app.js"']
        assert f"function mount{view.title()}(" in sent
        assert f"function mount{view.title()}(" not in SENT["app.js"].decode()


def test_what_two_views_need_is_sent_once():
    files = {
        "a.js": 'import { s } from "./s.js";\ns(await import("./b.js"), await import("./c.js"));\n',
        "b.js": 'import { s } from "./s.js";\nimport { two } from "./two.js";\n'
        "export const b = () => s(two);\n",
        "c.js": 'import { two } from "./two.js";\nexport const c = () => two;\n',
        "s.js": "export function s() {}\n",
        "two.js": 'import { base } from "./base.js";\nexport const two = base;\n',
        "base.js": "export const base = 2;\n",
    }
    scripts = split_scripts("a.js", files)
    assert scripts["a.js"].startswith("const base = 2;\n\nconst two = base;\n")
    assert scripts["a.js"].endswith("export { s, two };\n")
    assert scripts["b.js"].startswith('import { s, two } from "./a.js";\n')
    assert scripts["b.js"].endswith("export { b };\n") and "function s" not in scripts["b.js"]
    with pytest.raises(AssertionError, match="declared by two modules of the page: two"):
        split_scripts("a.js", files | {"s.js": "export function s() {}\nconst two = 1;\n"})


@pytest.mark.parametrize("view", VIEWS)
def test_the_texts_of_a_view_are_in_its_files(view):
    keys = {*STRINGS["strings/shell.json"]["en"], *STRINGS[f"strings/{view}.json"]["en"]}
    paths = {*imports_first(f"{view}.js", MODULES), *imports_first("app.js", MODULES)}
    pattern = re.compile(r"""\bt\(\s*["`]([\w.]+?)(?:"|\.\$\{)""")
    asked = {(path, key) for path in paths for key in pattern.findall(MODULES[path])}
    others = [one for one in asked if not any(f"{key}.".startswith(f"{one[1]}.") for key in keys)]
    assert others == []


def test_every_name_that_a_module_imports_is_exported_there():
    """In the joined script a missing one is found only when it is called."""
    pattern = re.compile(r"""^import \{([^}]*)\} from "\./([^"]+)";""", re.MULTILINE)
    exported = re.compile(
        r"^export (?:async )?(?:function\*?|class|const|let) ([A-Za-z_$][\w$]*)", re.MULTILINE
    )
    missing = [
        (name, path, one.strip())
        for name, source in MODULES.items()
        for names, path in pattern.findall(source)
        for one in names.split(",")
        if one.strip() and one.strip() not in exported.findall(MODULES[path])
    ]
    assert missing == []


def test_no_top_level_name_occurs_in_two_modules():
    counts = Counter(name for source in MODULES.values() for name in names_of(source))
    assert [name for name, number in counts.items() if number > 1] == []


def test_modules_can_be_joined_into_one_script():
    """Named exports and imports only, under their own names; only app.js imports on demand."""
    pattern = re.compile(r"export default|import \*|import\(|(?:import|export) \{[^}]* as ")
    lazy = re.compile(r'await import\("\./\w+\.js"\)')
    sources = {name: without_comments(source) for name, source in MODULES.items()}
    sources["app.js"] = lazy.sub("", sources["app.js"])
    assert [name for name, source in sources.items() if pattern.search(source)] == []


@pytest.mark.parametrize("name", MODULES)
def test_a_module_has_short_functions_and_says_what_it_is(name):
    assert list(long_functions(MODULES[name])) == []
    assert MODULES[name].startswith("/**\n * ")
    assert f"@module {name.removesuffix('.js')}\n" in MODULES[name]


def test_a_long_function_is_found():
    body = "  one();\n" * MAX_FUNCTION
    assert list(long_functions(f"function f() {{\n{body}}}\n")) == ["1: 42 lines"]
    assert list(long_functions("function f() {\n  one();\n}\n")) == []
    assert list(long_functions(f"const f = (a) => {{\n{body}}};\n")) == ["1: 42 lines"]


@pytest.mark.parametrize("name", MODULES)
def test_no_module_parses_html_or_code(name):
    assert UNSAFE.findall(without_comments(MODULES[name])) == []


@pytest.mark.parametrize("name", [*MODULES, *(name for name in STYLES if name != SIZES_FILE)])
def test_colors_and_sizes_are_in_one_file(name):
    source = without_comments({**MODULES, **STYLES}[name])
    lines = [line for line in source.splitlines() if not line.startswith("@media ")]
    hidden = "inline-size: 1px; block-size: 1px;"  # the idiom of text for screen readers only
    text = "\n".join(lines).replace(hidden, "")
    assert COLOR.findall(text) + SIZE.findall(text) == []


def test_every_size_and_color_that_is_used_is_declared_and_the_reverse():
    declared = set(re.findall(r"(--[\w-]+):", STYLES[SIZES_FILE]))
    sources = "\n".join([*MODULES.values(), *STYLES.values()])
    used = set(re.findall(r"var\((--[\w-]+)", sources)) | set(
        re.findall(r"\"(--(?:ramp|signed|request)-[\w-]+)\"", "\n".join(MODULES.values()))
    )
    set_by_modules = set(re.findall(r"setProperty\(\"(--[\w-]+)\"", sources))
    assert used - set_by_modules - declared == set()


@pytest.mark.parametrize("theme", [0, 1])
def test_requests_have_six_hues_that_can_be_told_apart(theme):
    pattern = r"--request-\d: light-dark\(#(\w{6}), #(\w{6})\);"
    colors = [pair[theme] for pair in re.findall(pattern, STYLES[SIZES_FILE])]
    parts = [[int(one[i : i + 2], 16) / 255 for i in (0, 2, 4)] for one in colors]
    hues = sorted(360 * colorsys.rgb_to_hsv(*one)[0] for one in parts)
    gaps = [after - before for before, after in pairwise([*hues, hues[0] + 360])]
    assert len(hues) == 6 and min(gaps) > 24


def test_text_has_five_sizes_and_two_weights():
    text = "\n".join(STYLES.values())
    sizes = set(re.findall(r"font-size: ([^;]+);", text)) - {"100%"}
    weights = set(re.findall(r"font-weight: ([^;]+);", text))
    assert sizes <= {f"var(--size-{one})" for one in (12, 14, 16, 20, 28)}
    assert weights <= {"var(--weight)", "var(--weight-strong)"}


def test_icons_are_few():
    block = MODULES["icons.js"].partition("const PATHS = {")[2].partition("};")[0]
    assert len(re.findall(r"^  \w+: \"", block, re.MULTILINE)) <= 12


@pytest.mark.parametrize("name", STRINGS)
def test_strings_are_in_both_languages_with_the_same_places_to_fill_in(name):
    english, chinese = STRINGS[name]["en"], STRINGS[name]["zh"]
    keys = {key for key in english if not key.endswith(".one")}
    assert keys == {key for key in chinese if not key.endswith(".one")}
    for key in keys:
        places = [sorted(set(re.findall(r"\{(\w+)\}", table[key]))) for table in (english, chinese)]
        assert places[0] == places[1], key
        assert english[key].strip() and chinese[key].strip() and "!" not in english[key], key


def test_every_text_that_a_module_asks_for_exists():
    known = {key for file in STRINGS.values() for key in file["en"]}
    asked = {key for source in MODULES.values() for key in CALL.findall(source)}
    assert asked - known == set()


def test_no_key_is_in_two_files_of_strings():
    counts = Counter(key for file in STRINGS.values() for key in file["en"])
    assert [key for key, number in counts.items() if number > 1] == []


def test_no_file_names_another_host():
    allowed = re.compile(r"http://www\.w3\.org/")
    for name, data in FILES.items():
        urls = re.findall(r"https?://[\w.]+/?", allowed.sub("", data.decode()))
        assert urls == [], name
