"""Walk by keyboard, in Chinese, in files, with hostile input: all is reached, read and saved."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.browser.harness import Tab
from tests.browser.scripted_page import run_text, scripted_page
from tests.browser.test_cache import open_cache, run_prompts
from tests.browser.test_walk import OTHER, TARGET, TEXT, open_all, open_walk, select, share
from tests.browser.trace_server import TraceServer
from tests.engine.tiny import tiny

MARKUP = '<img src=x onerror="window.hacked=1">\u202e'
PNG = b"\x89PNG\r\n\x1a\n"
Open = Callable[..., Tab]


@pytest.fixture(scope="module")
def server() -> Iterator[TraceServer]:
    base = tiny("decoder", max_len=200)
    models = {"base": base, "translator": tiny(), MARKUP: replace(base)}
    with TraceServer(models) as one:
        yield one


@pytest.fixture
def walk(server: TraceServer, tab: Open) -> Callable[..., Tab]:
    def show(text: str = OTHER, model: str = "base", target: str = "", **options: object) -> Tab:
        return open_walk(tab(server.url, **options), model, text, target)

    return show


def focused(page: Page, selector: str) -> bool:
    return bool(page.evaluate(f"document.activeElement.matches({selector!r})"))


def test_bars_and_cells_of_the_lens_are_chosen_by_keyboard(walk):
    page = walk().page
    page.locator("#score .bar-row[tabindex='0']").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    name = page.evaluate("document.activeElement.getAttribute('aria-label')")
    page.keyboard.press("Enter")
    expect(page.locator("#score .bar-row.chosen")).to_have_attribute("aria-label", name)
    assert focused(page, ".bar-row"), "the focus stays where it was"
    page.locator("#lens .figure-toggle").click()
    page.locator("#lens .lens-cell[tabindex='0']").focus()
    before = page.locator("#lens .readout").inner_text()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Space")
    expect(page.locator("#lens .readout")).not_to_have_text(before)
    page.wait_for_url("**token=1**")
    assert focused(page, ".lens-cell")


def test_cells_of_the_similarities_are_chosen_by_keyboard(tab):
    with scripted_page(lambda prompt: "") as server:
        one = tab(server.url).open("#/play?mode=embeddings")
        run_text(one.page, "one\ntwo\nthree")
        one.page.locator(".similarity-cell[tabindex='0']").focus()
        one.page.keyboard.press("ArrowRight")
        one.page.keyboard.press("Enter")
        expect(one.page.locator(".inspector-title")).to_contain_text("2")
        assert one.violations() == []


def test_terms_of_the_panels_open_their_line_of_the_glossary(walk):
    page = walk().page
    page.locator("#score .term").get_by_text("scaled dot-product attention").click()
    note = page.locator(".term-note:popover-open")
    expect(note).to_contain_text("softmax")
    terms = page.locator("main .term").all_inner_texts()
    assert len(set(terms)) == len(terms) >= 8


ENGLISH = re.compile(r"\b(token|word|bytes|key|score|mask|weight|unit|value|position|pair)\b")


def test_headers_of_tables_are_in_the_language_of_the_page(walk):
    page = walk(language="zh-CN").page
    open_all(page)
    page.evaluate("document.querySelectorAll('main .fold').forEach((one) => (one.open = true))")
    expect(page.locator("#score table")).to_be_visible()
    headers = page.locator("main .panel").evaluate_all(
        "(all) => all.flatMap((one) => [...one.querySelectorAll('thead th')].slice(0, 6)"
        ".map((th) => [one.id, th.textContent]))"
    )
    wrong = [one for one in headers if ENGLISH.search(one[1]) and one[0] not in ("map", "lens")]
    assert headers and wrong == []


def saved(page: Page, panel: str, kind: str) -> Path:
    section = page.locator(f"#{panel}")
    section.locator(".fold").last.evaluate("(one) => (one.open = true)")
    with page.expect_download() as download:
        section.get_by_role("button", name=kind).click()
    return Path(download.value.path())


def test_figures_are_saved_whole_as_svg_png_and_csv(walk, server):
    page = walk().page
    open_all(page)
    for panel in ("score", "kinds", "attention", "map"):
        assert saved(page, panel, "PNG").read_bytes().startswith(PNG)
    trees = {panel: ElementTree.parse(saved(page, panel, "SVG")) for panel in ("score", "kinds")}
    labels = ["".join(node.itertext()) for node in trees["score"].iter() if "text" in node.tag]
    assert any("·" in one for one in labels) and any("→" in one for one in labels)
    assert [node for node in trees["kinds"].iter() if node.tag.endswith("image")]
    fields = dict(re.findall(r"(layer|head|token)=(\d+)", page.url))
    row = server.last.array(
        f"decoder.{fields['layer']}.attention.weights", int(fields["head"]), int(fields["token"])
    )
    lines = list(csv.reader(saved(page, "score", "CSV").read_text("utf-8-sig").splitlines()))
    np.testing.assert_allclose([float(line[3].strip("<>")) for line in lines[1:]], row, atol=1e-4)


def test_requests_of_the_cache_are_saved(served, tab):
    page = open_cache(tab, served.url)
    run_prompts(page)
    lines = list(
        csv.reader(saved(page, "cache-requests", "CSV").read_text("utf-8-sig").split("\n"))
    )
    assert [line[0] for line in lines[1:3]] == ["a", "b"]
    page.get_by_role("button", name="Compare").click()
    page.locator(".sharing-line").wait_for()
    assert "Equal" in saved(page, "cache-why", "CSV").read_text("utf-8-sig")


@pytest.mark.parametrize("model", ["base", "translator"])
def test_the_inspector_has_the_probability_of_the_token_and_saves(walk, server, model):
    page = walk(model=model, target=TARGET if model == "translator" else "").page
    token = 2
    select(page, stack="decoder", token=token)
    page.wait_for_url(f"**token={token}**")
    trace = server.last
    side = "tgt" if model == "translator" else "src"
    logits = trace.array("decoder.logits", row=token - 1).astype(np.float64)
    p = np.exp(logits - np.logaddexp.reduce(logits))[trace.tokens[side][token].id]
    facts = page.locator(".inspector .facts")
    expect(facts).to_contain_text(f"probability{share(float(p), 4)}")
    with page.expect_download() as download:
        page.locator(".inspector").get_by_role("button", name="Save").click()
    assert share(float(p), 4) in Path(download.value.path()).read_text("utf-8-sig")


def test_names_of_models_with_markup_stay_text(walk):
    one = walk(TEXT, MARKUP)
    page = one.page
    assert page.evaluate("window.hacked") is None
    assert page.locator("header img, main img, aside img").count() == 0
    assert MARKUP in page.locator(".model-choice").inner_text()
    open_all(page)
    one.check_quiet()


def test_ten_thousand_characters_are_refused_in_one_sentence_and_kept(walk, served, tab):
    page = walk().page
    text = f"{MARKUP} " * 250
    page.get_by_label("Text", exact=True).fill(text)
    page.get_by_role("button", name="Run").click()
    expect(page.locator(".walk-status [data-state=error]")).to_contain_text("tokens")
    assert page.get_by_label("Text", exact=True).input_value() == text
    cache = open_cache(tab, served.url)
    cache.get_by_label("First prompt").fill(text)
    cache.get_by_role("button", name="Run", exact=True).click()
    expect(cache.locator(".cache-status [data-state=error]")).to_contain_text("pages")
    assert cache.get_by_label("First prompt").input_value() == text
    assert page.evaluate("window.hacked") is None and cache.evaluate("window.hacked") is None
