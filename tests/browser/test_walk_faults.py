"""Walk when answers overlap or arrive late: what is shown belongs to what is chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import expect
from starlette.responses import JSONResponse

from tests.browser.harness import Tab
from tests.browser.scripted_page import run_text, scripted_page, wait_done, written
from tests.browser.test_walk import OTHER, line_of, open_walk, select, share
from tests.browser.trace_server import TraceServer
from tests.engine.tiny import tiny

LONG = "XY ZW Q " * 20  # a byte, and so a token, per character
DELAY = """
(delays) => {
  const send = window.fetch;
  const left = [...delays];
  window.fetch = async (path, options) => {
    const answer = await send(path, options);
    const place = left.findIndex(([part]) => String(path).includes(part));
    const [, wait] = place < 0 ? ["", 0] : left.splice(place, 1)[0];
    await new Promise((done) => setTimeout(done, wait));
    return answer;
  };
}
"""
"""Each delay, a part of a path and milliseconds, is for one request."""
Open = Callable[..., Tab]


@pytest.fixture(scope="module")
def server() -> Iterator[TraceServer]:
    with TraceServer({"base": tiny("decoder", max_len=400), "translator": tiny()}) as one:
        yield one


@pytest.fixture
def walk(server: TraceServer, tab: Open) -> Callable[..., Tab]:
    def show(text: str, model: str = "base", **options: object) -> Tab:
        return open_walk(tab(server.url, **options), model, text)

    return show


def test_a_late_answer_for_an_older_selection_is_not_shown(walk, server):
    page = walk(LONG).page
    select(page, layer=1, head=2, token=30)
    expect(page.locator(".inspector .facts")).to_contain_text("layer 1 head 2")
    page.evaluate(DELAY, [["row=41", 900], ["row=41", 900]])
    select(page, token=41)
    page.wait_for_timeout(100)
    select(page, token=52)
    row = server.last.array("decoder.1.attention.weights", head=2, row=52)
    facts = page.locator(".inspector .facts")
    expect(facts).to_contain_text(f"with {share(float(row[52]), 4)}")
    page.wait_for_timeout(1200)
    assert f"with {share(float(row[52]), 4)}" in facts.inner_text()


def test_a_folded_panel_of_a_long_text_has_no_numbers_of_another_selection(walk):
    page = walk(LONG).page
    toggle = page.locator("#residual .figure-toggle")
    toggle.click()
    expect(page.locator("#residual .figure-line")).not_to_be_empty()
    toggle.click()
    select(page, token=7)
    expect(page.locator("#residual .figure-line")).to_be_empty()
    toggle.click()
    expect(page.locator("#residual .figure-line")).not_to_be_empty()


def test_heads_that_are_ticked_quickly_show_the_last_answer_and_no_error(walk, server):
    page = walk(OTHER).page
    server.failures.append(JSONResponse({"error": {"message": "m", "code": "trace_replaced"}}, 409))
    page.evaluate(DELAY, [["/look", 200], ["/look", 900]])
    page.locator("#heads .head-cell input").nth(1).check()
    page.locator("#heads .head-cell input").nth(2).check()
    page.wait_for_timeout(500)
    assert page.locator("#heads [data-state=error]").count() == 0
    expect(page.locator("#heads .ablation-line")).to_contain_text("0.2")
    assert [str(head) for head in server.last.ablated] == ["decoder.0.1", "decoder.0.2"]


def test_the_first_token_is_left_out_of_the_map_and_not_drawn_as_masked(walk):
    page = walk(OTHER).page
    labels = page.locator("#attention .matrix-picture .label")
    before = labels.count()
    page.locator("#attention").get_by_label("Hide the first token").check()
    expect(labels).to_have_count(before - 1)
    page.locator("#attention .matrix").focus()
    page.keyboard.press("End")
    page.keyboard.press("Home")
    page.wait_for_url("**key=1**")


HATCHED = """
async () => {
  const { readPalette } = await import("/assets/color_ramp.js");
  const canvas = document.querySelector("#attention .matrix canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return new Uint32Array(data.buffer).includes(readPalette(false).hatch);
}
"""


def test_a_block_with_the_first_token_stays_in_a_reduced_map(walk):
    page = walk(LONG).page
    page.locator("#attention .matrix canvas").wait_for()
    assert not page.evaluate(HATCHED)
    page.locator("#attention").get_by_label("Hide the first token").check()
    page.wait_for_timeout(400)
    assert not page.evaluate(HATCHED)


def test_the_exact_row_of_a_reduced_view_is_one_click_away(walk, server):
    page = walk(LONG).page
    select(page, layer=0, head=1, token=60)
    page.wait_for_url("**token=60**")
    page.locator("#attention").get_by_role("button", name="Show exact row").click()
    cells = page.locator("#attention .table-box td")
    row = server.last.array("decoder.0.attention.weights", head=1, row=60)
    expect(cells).to_have_count(len(row))
    expect(cells.nth(5)).to_have_text(f"{row[5]:.6f}")


def test_a_change_of_the_language_does_not_run_the_text_again(walk, server):
    page = walk(OTHER).page
    expect(page.locator("#score .figure-line")).not_to_be_empty()
    line = line_of(page, "score")
    traces = len(server.traces)
    page.get_by_role("button", name="中文").click()
    page.locator("html[lang=zh]").wait_for()
    expect(page.locator("#score .figure-line")).to_have_text(line)
    assert len(server.traces) == traces
    select(page, token=1)
    page.wait_for_url("**token=1**")
    assert page.locator("[data-state=error]").count() == 0


@pytest.mark.parametrize("mode", ["completion", "chat"])
def test_a_change_of_the_language_keeps_the_answer_of_play(tab, mode):
    with scripted_page(lambda prompt: "It is blue.") as server:
        page = tab(server.url).open(f"#/play?mode={mode}").page
        run_text(page, "Why?")
        wait_done(page)
        page.get_by_role("button", name="中文").click()
        page.locator("html[lang=zh]").wait_for()
        assert "It is blue." in written(page)
        page.locator(".written").focus()
        page.keyboard.press("Home")
        expect(page.locator(".inspector-selection")).to_contain_text("概率")


def test_an_array_that_does_not_arrive_shows_the_banner_and_comes_back(walk):
    one = walk(LONG)
    one.page.route("**/array?**", lambda route: route.abort())
    select(one.page, token=9)
    expect(one.page.locator(".banners [data-state=offline]")).to_be_visible()
    one.page.unroute("**/array?**")
    one.page.locator(".banners [data-state=offline]").wait_for(state="detached")
    expect(one.page.locator("#attention .figure-line")).not_to_be_empty()
    assert one.page.locator(".walk-result [data-state=offline]").count() == 0


def test_a_branch_continues_with_exactly_the_chosen_tokens(walk, server):
    one = walk("苹果", "base")
    page, before = one.page, server.last
    last = len(before.tokens["src"]) - 1
    select(page, token=last)
    candidates = before.candidates["decoder"][last]
    place, chosen = next(
        (place, token)
        for place, token in enumerate(candidates)
        if 0x80 <= int(token.bytes[:2] or "0", 16) < 0xC0  # the rest of a character
    )
    page.locator("#output .figure-line").get_by_text(f"{share(candidates[0].p)};").wait_for()
    page.locator("#output .bars .bar-row").nth(place).dispatch_event("click")
    page.wait_for_url("**ids=**")
    expect(page.locator("#tokens .token-chip")).to_have_count(last + 2)
    expected = [*(token.id for token in before.tokens["src"]), chosen.id]
    assert [token.id for token in server.last.tokens["src"]] == expected
    assert "\ufffd" not in page.get_by_label("Text", exact=True).input_value()
    page.locator("#heads .head-cell input").nth(1).check()
    page.locator("#heads .ablation-line").wait_for()
    assert [token.id for token in server.last.tokens["src"]] == expected
    page.get_by_role("button", name="Run").click()
    expect(page.locator("#tokens .token-chip")).to_have_count(last + 1)


def test_a_branch_of_a_translation_keeps_its_source(walk, server):
    page = walk(OTHER, "translator").page
    select(page, stack="decoder", token=0)
    page.wait_for_url("**stack=decoder**")
    candidates = server.last.candidates["decoder"][0]
    place, chosen = next((i, one) for i, one in enumerate(candidates) if one.bytes)
    start = server.last.tokens["tgt"][0].id
    page.locator("#output .figure-line").get_by_text(f"{share(candidates[0].p)};").wait_for()
    page.locator("#output .bars .bar-row").nth(place).dispatch_event("click")
    page.wait_for_url("**ids=**")
    page.wait_for_timeout(500)
    assert [token.id for token in server.last.tokens["tgt"]] == [start, chosen.id]
    assert server.last.text == OTHER
