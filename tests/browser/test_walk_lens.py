"""What Walk says without being asked, and the logit lens of a model whose vocabulary is large."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import parse_qsl, urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.browser.test_walk import OTHER, TARGET, TEXT, line_of, open_walk, share
from tests.browser.trace_server import TraceServer
from tests.engine.tiny import tiny
from weft.look import recorder
from weft.look.head_table import head_statistics
from weft.look.rankings import sharpest_head

NUM_LAYERS = 14
TEXTS = (OTHER, "the mat sat", "two apples", "dog")


@pytest.fixture(scope="module")
def server() -> Iterator[TraceServer]:
    models = {"base": tiny("decoder", max_len=400), "translator": tiny()}
    deep = tiny("decoder", max_len=200, num_layers=NUM_LAYERS)
    with TraceServer({**models, "deep": deep}) as one:
        yield one


def fields_of(page: Page) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(page.url).fragment.partition("?")[2]))


@pytest.mark.parametrize("text", TEXTS)
def test_the_head_that_is_shown_first_is_the_sharpest_of_python(server, tab, text):
    _, *ids = server.models["deep"].tokenizer.encode(text)  # without <begin>, as SmolLM2 reads
    page = open_walk(tab(server.url), "deep", text, ids=",".join(map(str, ids))).page
    assert not server.last.tokens["src"][0].is_special
    fields = fields_of(page)
    head = sharpest_head(server.last, "decoder", int(fields["token"]))
    assert (int(fields["layer"]), int(fields["head"])) == (head.layer, head.head)


def test_the_first_head_of_a_translator_is_the_sharpest_of_python(server, tab):
    page = open_walk(tab(server.url), "translator", TEXT, TARGET).page
    fields = fields_of(page)
    head = sharpest_head(server.last, "encoder", int(fields["token"]))
    assert (int(fields["layer"]), int(fields["head"])) == (head.layer, head.head)


def test_the_entropy_of_a_head_is_that_of_the_terminal(server, tab):
    page = open_walk(tab(server.url), "base", OTHER, token=5).page
    trace = server.last
    row = [
        head_statistics(
            "", trace.array(f"decoder.{i}.attention.weights")[h, 5:6], [5], True
        ).entropy
        for i in range(trace.model.layers[0])
        for h in range(trace.model.heads)
    ]
    assert line_of(page, "heads").endswith(f"entropy {share(min(row))} bits.")


def test_the_search_and_the_effect_of_a_head_are_near_the_heads_of_a_deep_model(server, tab):
    one = open_walk(tab(server.url), "deep", OTHER)
    page = one.page
    page.get_by_role("button", name="All heads").click()
    expect(page.locator("#heads .finder")).to_be_in_viewport()
    expect(page.locator("#heads .ablation")).to_be_in_viewport()
    first = page.locator("#heads .found button").first
    first.click()
    expect(page.locator("#heads .head-tile[aria-pressed=true]")).to_be_in_viewport()
    expect(page.locator("#heads .finder")).to_be_in_viewport()
    assert one.violations() == []
    one.check_quiet()


def check_lens(page: Page, server: TraceServer, positions: list[int]) -> None:
    """The names of the cells have the layers, tokens and probabilities of Python."""
    with server.lock:  # the page may still read other numbers, through hooks of the same layers
        lens = server.last.logit_lens(positions)
    cells = page.locator("#lens .lens-cell")
    expect(cells).to_have_count(len(lens.top) * len(positions))
    names = cells.evaluate_all("(all) => all.map((one) => one.getAttribute('aria-label'))")
    expected = [
        f"layer {layer}: {best.text} {share(best.p, 4)}"
        for layer, row in enumerate(lens.top)
        for (best, *_) in row
    ]
    shown = [name.partition(", ")[2].replace("\u2423", " ") for name in names]
    assert sorted(shown) == sorted(one.replace("\u2423", " ") for one in expected)


def test_a_large_vocabulary_is_read_when_the_lens_is_opened(server, tab, monkeypatch):
    monkeypatch.setattr(recorder, "MAX_LENS_PRODUCTS", 0)
    one = open_walk(tab(server.url), "base", OTHER, token=3)
    page, trace = one.page, server.last
    assert trace.lens is None
    expect(page.locator("#lens .figure-line")).to_contain_text("each of 2 layers when you open")
    assert not any("/lens" in url for url in one.requests)
    page.locator("#lens .figure-toggle").click()
    expect(page.locator("#lens .figure-line")).to_contain_text("the last layer says")
    check_lens(page, server, list(range(len(trace.tokens["src"]))))
    one.check_quiet()


def test_a_narrow_window_shows_titles_below_the_header_and_the_chosen_column(server, tab):
    one = open_walk(tab(server.url, width=360, height=740), "deep", OTHER, token=5)
    page = one.page
    for name, panel in (("Logit lens", "lens"), ("One head", "attention")):
        page.locator(".rail-toggle").click()
        page.get_by_role("button", name=name, exact=True).click()
        expect(page.locator(f"#{panel} .figure-line")).not_to_be_empty()
        page.wait_for_timeout(300)
        title = page.locator(f"#{panel} .figure-title").bounding_box()
        strip = page.locator(".strip").bounding_box()
        assert title is not None and strip is not None
        assert title["y"] >= strip["y"] + strip["height"]
    column = page.locator("#lens .chosen-cell").evaluate(
        "(one) => [one, one.closest('.scroll-box')].map((box) => box.getBoundingClientRect().right)"
    )
    assert column[0] <= column[1] + 1


def test_of_a_long_text_the_chosen_token_is_read(server, tab):
    one = open_walk(tab(server.url), "base", " ".join([OTHER] * 20), token=90, panel="lens")
    expect(one.page.locator("#lens .figure-line")).to_contain_text("the last layer says")
    check_lens(one.page, server, [90])
    one.check_quiet()
