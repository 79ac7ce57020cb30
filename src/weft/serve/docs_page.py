"""GET /docs: one page with all routes, from the OpenAPI description of the application.

FastAPI's own page loads scripts and styles from the internet; this one has neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color-scheme: light dark }
code, td:first-child { font-family: ui-monospace, monospace; white-space: nowrap }
table { border-collapse: collapse; width: 100% }
td, th { text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0;
  border-bottom: 1px solid #8884 }
summary { cursor: pointer }
"""


def docs_page(openapi: Mapping[str, Any]) -> str:
    """The page, as HTML."""
    title = f"{openapi['info']['title']} {openapi['info']['version']}"
    sections = "".join(
        f"<h2>{escape(tag)}</h2><table>{''.join(rows)}</table>"
        for tag, rows in by_tag(openapi).items()
    )
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title>"
        "<meta name=viewport content='width=device-width'><link rel=icon href='data:,'>"
        f"<style>{STYLE}</style><h1>{escape(title)}</h1>"
        "<p>The routes of this server. <a href='/openapi.json'>openapi.json</a> has their fields "
        f"for programs.</p>{sections}</html>"
    )


def by_tag(openapi: Mapping[str, Any]) -> dict[str, list[str]]:
    """The rows of each section."""
    sections: dict[str, list[str]] = {}
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            tag = (operation.get("tags") or ["other"])[0]
            sections.setdefault(tag, []).append(row(openapi, method, path, operation))
    return sections


def row(openapi: Mapping[str, Any], method: str, path: str, operation: Mapping[str, Any]) -> str:
    text = operation.get("description") or operation.get("summary", "")
    return (
        f"<tr><td>{escape(method.upper())} {escape(path)}</td>"
        f"<td>{escape(text)}{fields_html(openapi, operation)}</td></tr>"
    )


def fields_html(openapi: Mapping[str, Any], operation: Mapping[str, Any]) -> str:
    """The fields of the request body, folded; empty without a body."""
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(text)}</td></tr>"
        for name, text in body_fields(openapi, operation)
    )
    if not rows:
        return ""
    return f"<details><summary>fields</summary><table>{rows}</table></details>"


def body_fields(
    openapi: Mapping[str, Any], operation: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Name and meaning of each field of the request body."""
    content = operation.get("requestBody", {}).get("content", {})
    media: Mapping[str, Any] = next(iter(content.values()), {})  # others have the same fields
    schema = media.get("schema", {})
    if "$ref" in schema:
        schema = openapi["components"]["schemas"][schema["$ref"].split("/")[-1]]
    for name, one in schema.get("properties", {}).items():
        yield name, one.get("description", "")
