"""The tables of docs/serve.md: routes, error statuses and fields, from the code of the server.

python -m weft.cli.serve_page docs/serve.md            write them
python -m weft.cli.serve_page --check docs/serve.md    exit 1 if they are out of date

A table is between the lines `<!-- begin NAME -->` and `<!-- end NAME -->` of the page. The text
around it is written by hand.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import cleandoc, get_annotations
from pathlib import Path
from typing import Any, get_args

from fastapi.routing import APIRoute

from weft.cli.help_page import update
from weft.serve.api_errors import ApiError, error_body, error_status, protocol_of
from weft.serve.bodies import Body, field_table
from weft.serve.libretranslate import TranslateBody
from weft.serve.protocols import PROTOCOLS
from weft.serve.responses import STATUS_MEANINGS

TAGS = (
    "OpenAI",
    "Anthropic",
    "Ollama",
    "LibreTranslate",
    "rerank",
    "tokens",
    "Weft",
    "operations",
)
"""The order of the routes; tags that are not listed come last."""
ERROR_PATHS = {"OpenAI": "/v1/completions", "Anthropic": "/v1/messages"}
"""A path with the error shape of each protocol whose errors have types."""
PARSED_BODIES: Mapping[str, type[Body]] = {"/translate": TranslateBody}
"""Routes that parse their bodies themselves, because those may also be forms."""
NESTED = ("honored", "template variable")
"""Classes of fields whose own fields have an effect."""
OTHER_STATUSES = {
    405: "The route has no such method.",
    408: "The body was not complete when the timeout had passed.",
}


def served_routes() -> list[APIRoute]:
    """The documented routes, by tag, in the order of the protocols."""
    routes = [
        route
        for router in PROTOCOLS.values()
        for route in router.routes
        if isinstance(route, APIRoute) and route.include_in_schema
    ]
    known = {tag: place for place, tag in enumerate(TAGS)}
    return sorted(routes, key=lambda route: known.get(tag_of(route), len(TAGS)))


def tag_of(route: APIRoute) -> str:
    return str(route.tags[0]) if route.tags else "other"


def route_name(route: APIRoute) -> str:
    """`POST /v1/completions`."""
    return f"{' '.join(sorted(route.methods or ()))} {route.path.replace(':path', '')}"


def bodies_of(routes: Sequence[APIRoute]) -> list[tuple[APIRoute, type[Body]]]:
    """The routes that read a body, with its class."""
    pairs = []
    for route in routes:
        if route.path in PARSED_BODIES:
            pairs.append((route, PARSED_BODIES[route.path]))
        for one in route.dependant.body_params:
            kind = one.field_info.annotation
            if isinstance(kind, type) and issubclass(kind, Body):
                pairs.append((route, kind))
    return pairs


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(cell, line)) + " |" for line in lines)


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def first_paragraph(documentation: str | None) -> str:
    return cleandoc(documentation or "").split("\n\n")[0]


def routes_table() -> str:
    """Every route with its protocol and the first sentence of its function."""
    rows = [
        [tag_of(route), f"`{route_name(route)}`", first_paragraph(route.endpoint.__doc__)]
        for route in served_routes()
    ]
    return table(["protocol", "route", "response"], rows)


def statuses_table() -> str:
    """Error statuses; the type of an error in the protocols that have types."""
    meanings = {**STATUS_MEANINGS, **OTHER_STATUSES}
    rows = []
    for status, meaning in sorted(meanings.items()):
        types = [error_type(path, status) for path in ERROR_PATHS.values()]
        rows.append([str(status), meaning, *types])
    return table(["status", "meaning", *(f"`type` of {name}" for name in ERROR_PATHS)], rows)


def error_type(path: str, status: int) -> str:
    """The type of an error, with its status if the protocol has another one."""
    kind = f"`{error_body(path, ApiError(status, ''))['error']['type']}`"
    sent = error_status(protocol_of(path), status)
    return kind if sent == status else f"{kind}, status {sent}"


def fields_tables() -> str:
    """A table for each body; fields that several bodies inherit have a table of their own."""
    bodies = bodies_of(served_routes())
    shared = shared_classes([body for _, body in bodies])
    parts = []
    for kind in shared:
        names = [f"`{route.path}`" for route, body in bodies if issubclass(body, kind)]
        parts.append(section(f"Fields of {', '.join(names)}", kind, [kind]))
    for route, body in bodies:
        inherited = [kind for kind in shared if issubclass(body, kind)]
        classes = [one for one in body.__mro__ if is_body(one) and one not in inherited]
        if any(own_rows(one) for one in classes):
            parts.append(section(f"`{route_name(route)}`", body, classes, bool(inherited)))
    return "\n\n".join(parts)


def shared_classes(bodies: Sequence[type[Body]]) -> list[type[Body]]:
    """Classes with fields of their own from which at least two bodies are derived."""
    bases = dict.fromkeys(
        one for body in bodies for one in body.__mro__ if is_body(one) and own_rows(one)
    )
    return [one for one in bases if sum(issubclass(body, one) for body in bodies) > 1]


def is_body(kind: type) -> bool:
    return issubclass(kind, Body)


def section(
    title: str, body: type[Body], classes: Sequence[type[Body]], has_more: bool = False
) -> str:
    """The fields that some classes of a body declare."""
    rows = [row for one in reversed(classes) for row in own_rows(one)]
    rows.sort(key=lambda row: not row[1].endswith("required"))
    note = "Also the shared fields above, unless they are listed here. " if has_more else ""
    if not body.is_strict:
        note += "Unknown fields are ignored."
    head = f"### {title}\n\n" + (f"{note.strip()}\n\n" if note else "")
    return head + table(["field", "class", "meaning"], rows)


def own_rows(body: type[Body], prefix: str = "") -> list[list[str]]:
    """The rows of the fields that a class itself declares, those of bodies inside included."""
    declared = get_annotations(body)
    rows = []
    for name, kind, meaning in field_table(body):
        info = body.model_fields[name]
        if name not in declared:
            continue
        shown = prefix + (info.alias or name)
        label = f"{kind.name}, required" if info.is_required() and not prefix else kind.name
        text = sentence(kind.note) if kind.name == "rejected" else meaning
        if text or not prefix:
            rows.append([f"`{shown}`", label, text])
        for inner in inner_classes(info.annotation) if kind.name in NESTED else ():
            rows += [row for one in lineage(inner) for row in own_rows(one, f"{shown}.")]
    return rows


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def lineage(body: type[Body]) -> list[type[Body]]:
    """A body's classes, from the base on."""
    return [one for one in reversed(body.__mro__) if is_body(one)]


def inner_classes(annotation: Any) -> Iterator[type[Body]]:
    """The bodies that an annotation mentions."""
    if isinstance(annotation, type) and issubclass(annotation, Body):
        yield annotation
    for one in get_args(annotation):
        yield from inner_classes(one)


TABLES: Mapping[str, Callable[[], str]] = {
    "routes": routes_table,
    "statuses": statuses_table,
    "fields": fields_tables,
}


def filled(text: str) -> str:
    """The page with the tables of this version."""
    for name, make in TABLES.items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        match = re.search(f"{begin}.*?{end}", text, re.DOTALL)
        assert match is not None, f"the page has no lines '{begin}' and '{end}'"
        before, after = text[: match.start()], text[match.end() :]
        text = f"{before}{begin}\n{make()}\n{end}{after}"
    return text


def write_or_check_tables(args: Sequence[str]) -> int:
    """Write the tables of the page in `args`, or with --check compare them; the exit code."""
    path = Path(next(arg for arg in args if arg != "--check"))
    return update(path, filled(path.read_text(encoding="utf-8")), "--check" in args)


if __name__ == "__main__":
    sys.exit(write_or_check_tables(sys.argv[1:]))
