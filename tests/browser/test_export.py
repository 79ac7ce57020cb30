"""An exported file, opened from a disk in a real browser, shows the numbers of the trace."""

from __future__ import annotations

from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.browser.harness import Tab
from tests.browser.test_walk import OTHER, TARGET, TEXT, line_of, open_all, share
from tests.engine.tiny import tiny
from weft.look.export import MAX_BYTES, file_json
from weft.look.recorder import record
from weft.look.trace import Trace

Open = Callable[..., Tab]
HOSTILE = "</script><script>window.hacked=1</script><!--"


def trace_of(kind: str = "encoder-decoder", text: str = TEXT, target: str | None = TARGET) -> Trace:
    one = tiny(kind, max_len=200)
    return record(one.model, one.tokenizer, text, target if kind == "encoder-decoder" else None)


def opened(tab: Open, trace: Trace, path: Path) -> Tab:
    trace.to_html(path)
    one = tab(path.as_uri())
    one.page.goto(path.as_uri())
    one.page.wait_for_selector("#kinds .figure-line:not(:empty)")
    return one


def test_a_file_shows_the_numbers_of_the_trace_without_a_request(tab, tmp_path):
    trace = trace_of()
    one = opened(tab, trace, tmp_path / "trace.html")
    open_all(one.page)
    facts = one.page.locator(".inspector .facts").inner_text()
    row = next(int(part.split("=")[1]) for part in one.page.url.split("&") if "token=" in part)
    fields = dict(part.split("=") for part in one.page.url.split("?")[1].split("&"))
    layer, head = int(fields["layer"]), int(fields["head"])
    weights = trace.array(f"encoder.{layer}.attention.weights", head=head)[row]
    assert share(float(weights.max()), 4) in facts
    chosen = one.page.locator(".strip-token[aria-selected=true]")
    assert chosen.inner_text() == trace.tokens["src"][row].text
    best = trace.candidates["decoder"][0][0]
    assert share(best.p) in line_of(one.page, "output")
    assert one.page.locator("[data-state=error]").count() == 0
    assert "does not contain" not in one.page.inner_text("body")
    assert one.requests == [(tmp_path / "trace.html").as_uri()]
    one.check_quiet()
    assert one.violations() == []


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
def test_files_of_other_models_open_too(tab, tmp_path, kind):
    one = opened(tab, trace_of(kind, OTHER), tmp_path / "trace.html")
    open_all(one.page)
    assert one.page.locator("#attention .matrix svg").count() == 1
    one.check_quiet()


def test_text_cannot_leave_its_place_in_the_file(tab, tmp_path):
    one = opened(tab, trace_of("decoder", HOSTILE), tmp_path / "trace.html")
    assert one.page.evaluate("window.hacked") is None
    one.check_quiet()


def test_a_notebook_shows_the_page_in_a_frame_without_access(tab, tmp_path):
    html = trace_of()._repr_html_()
    frame = ElementTree.fromstring(html)
    assert frame.get("sandbox") == "allow-scripts allow-downloads"
    assert unescape(frame.get("srcdoc", "")).startswith("<!doctype html>")
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html><title>n</title><body>{html}", encoding="utf-8")
    one = tab(path.as_uri())
    one.page.goto(path.as_uri())
    shown = one.page.frame_locator("iframe")
    shown.locator("#kinds .figure-line:not(:empty)").wait_for()
    shown.locator("#attention .matrix").click()
    one.check_quiet()


def test_a_terminal_shows_the_trace_as_text():
    trace = trace_of("decoder", OTHER)
    bundle = trace._repr_mimebundle_(include=None, exclude=None)
    assert bundle["text/html"] == trace._repr_html_()
    assert trace.candidates["decoder"][-1][0].text.strip() in bundle["text/plain"]


def test_what_does_not_fit_is_left_out_and_said(monkeypatch):
    trace = trace_of()
    whole = file_json(trace)
    assert whole["limits"]["notes"] == []
    limit = size_of(whole) - 1000
    monkeypatch.setattr("weft.look.export.MAX_BYTES", limit)
    part = file_json(trace)
    assert "left out of this file" in part["limits"]["notes"][0]
    assert size_of(part) <= limit < MAX_BYTES


def size_of(data: dict[str, Any]) -> int:
    return sum(len(entry["b64"]) for entry in data["arrays"].values())
