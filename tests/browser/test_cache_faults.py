"""The Cache view when things overlap, fail or end: the engine is kept, and every number is that of
its moment."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.test_cache import FIRST, SECOND, answers_of, open_cache, run_prompts

DELAYED_STEPS = """
const send = window.fetch;
window.fetch = async (path, options) => {
  const answer = await send(path, options);
  if (String(path).endsWith("/step")) await new Promise((done) => setTimeout(done, 300));
  return answer;
};
"""
ENGINE = re.compile(r".*/look/scratch/s_\w+")


def step_words(page: Page) -> str:
    return page.locator(".timeline-words").inner_text()


def run_first(page: Page) -> None:
    page.get_by_label("First prompt").fill(FIRST)
    page.get_by_label("Second prompt").fill(SECOND)
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".request-row")).to_have_count(1)


def sent(page: Page) -> list[tuple[str, str]]:
    """Method and path of each request from now on."""
    requests: list[tuple[str, str]] = []
    page.on("request", lambda one: requests.append((one.method, one.url)))
    return requests


def test_steps_that_overlap_keep_the_engine(served, tab):
    page = open_cache(tab, served.url)
    page.evaluate(DELAYED_STEPS)
    requests = sent(page)
    run_first(page)
    next_step = page.get_by_role("button", name="Next step")
    next_step.click()
    next_step.click()
    page.get_by_role("button", name="Send second prompt").click()
    expect(page.locator(".request-row")).to_have_count(2)
    page.get_by_role("button", name="To the end").click()
    expect(page.get_by_role("button", name="To the end")).to_be_disabled()
    assert page.locator("[data-state=error]").count() == 0
    assert [one for one in requests if one[0] == "DELETE"] == []


def test_space_on_a_button_presses_that_button(served, tab):
    page = open_cache(tab, served.url)
    run_first(page)
    before = step_words(page)
    page.get_by_role("button", name="Compare").focus()
    page.keyboard.press("Space")
    expect(page.locator(".sharing-line")).to_be_visible()
    page.wait_for_timeout(300)
    assert step_words(page) == before
    page.locator("#cache-pool summary").first.focus()
    page.keyboard.press("Space")
    expect(page.locator("#cache-pool table")).to_be_visible()
    assert step_words(page) == before


ROWS = """
() => {
  const slider = document.querySelector(".timeline-slider");
  return Array.from({ length: Number(slider.max) }, (_, moment) => {
    slider.value = moment;
    slider.dispatchEvent(new Event("input"));
    return [...document.querySelectorAll(".request-row")].map((row) => [
      row.querySelector(".request-badge").textContent,
      [...row.querySelectorAll("strong")].map((one) => one.textContent).join(""),
      row.querySelector("p.hint").textContent,
    ]);
  });
}
"""


@pytest.mark.slow
def test_a_moment_shows_nothing_of_later_ones(served, tab):
    page = open_cache(tab, served.url)
    page.get_by_label("First prompt").fill(FIRST)
    page.get_by_role("button", name=re.compile("scripted scenario")).click()
    page.get_by_role("button", name="To the end").click()
    expect(page.get_by_role("button", name="To the end")).to_be_disabled()
    moments = page.evaluate(ROWS)
    assert all(not text for rows in moments[:3] for _, text, _ in rows)
    first: dict[str, str] = {}
    for rows in moments:
        for name, _, hint in rows:
            first.setdefault(name, hint)
    assert "waiting" in first.values()
    assert all(hint == "waiting" or "running" in hint for hint in first.values())
    slider = page.get_by_label("Timeline")
    run_prompts(page)
    last = int(slider.get_attribute("max") or 0)
    slider.fill(str(last))
    at_end = page.locator(".request-row").nth(1).inner_text()
    slider.fill(str(last - 1))  # inside the last step, whose token is not there yet
    assert page.locator(".request-row").nth(1).inner_text() != at_end


def test_a_beam_search_is_finished_at_the_moments_after_its_end(served, tab):
    page = open_cache(tab, served.url)
    page.get_by_label("Search").select_option("2")
    run_prompts(page)
    page.get_by_role("button", name="To the end").click()
    expect(page.get_by_role("button", name="To the end")).to_be_disabled()
    first = page.locator(".request-row").first
    written = first.inner_text()
    page.get_by_role("button", name="Back").click()
    expect(page.locator(".request-row").nth(1)).to_contain_text("running")
    assert first.inner_text() == written and "finished" in written


@pytest.mark.parametrize("model", ["base", "translator"])
def test_why_speaks_of_the_engine_that_is_drawn(served, tab, model):
    page = open_cache(tab, served.url, model)
    answers = answers_of(page)
    run_prompts(page)
    page.wait_for_timeout(100)
    snapshot = answers[-1]["snapshot"]
    with page.expect_response("**/why") as response:
        page.get_by_role("button", name="Compare").click()
    sharing: dict[str, Any] = json.loads(response.value.text())
    assert sharing["page_size"] == snapshot["page_size"] == 4
    if model == "base":
        assert sharing["num_shared"] == snapshot["requests"][1]["num_cached"] > 0
        assert sharing["num_cached"] >= sharing["num_shared"]
    else:
        assert [one["code"] for one in sharing["reasons"]][0] == "source"
    expect(page.locator(".sharing-line")).to_contain_text(f"{sharing['num_shared']} of")


def test_a_change_of_the_language_keeps_the_engine_and_the_selection(served, tab):
    page = open_cache(tab, served.url)
    run_prompts(page)
    page.locator('[data-page="2"]').click()
    pages, requests = page.locator("[data-page]").count(), sent(page)
    page.get_by_role("button", name="中文").click()
    expect(page.locator(".request-row")).to_have_count(2)
    assert page.locator("[data-page]").count() == pages
    assert page.locator('[data-page="2"]').get_attribute("aria-pressed") == "true"
    assert page.locator(".cache-prompts textarea").first.input_value() == FIRST
    page.get_by_role("button", name="运行到底").click()
    expect(page.get_by_role("button", name="运行到底")).to_be_disabled()
    assert [one for one in requests if one[0] == "DELETE"] == []


def test_an_engine_that_was_dropped_is_run_again_by_itself(served, tab):
    page = open_cache(tab, served.url)
    with page.expect_request("**/step") as request:
        run_first(page)
    headers = {"x-weft-session": request.value.headers["x-weft-session"]}
    drop = "([url, headers]) => fetch(url, { method: 'DELETE', headers })"
    page.evaluate(drop, [request.value.url.removesuffix("/step"), headers])
    page.get_by_role("button", name="Next step").click()
    expect(page.locator(".cache-status")).to_contain_text("so it was run again")
    expect(page.locator(".timeline-words")).to_contain_text("Step 2 of 2")
    assert page.locator("[data-state=error]").count() == 0


def test_a_server_that_is_gone_shows_the_banner(served, tab):
    one = tab(served.url).open("#/cache?model=base")
    run_first(one.page)
    one.context.set_offline(True)
    one.page.get_by_role("button", name="Next step").click()
    expect(one.page.locator(".banners [data-state=offline]")).to_be_visible()
    one.context.set_offline(False)
    one.page.locator(".banners [data-state=offline]").wait_for(state="detached")
    expect(one.page.locator(".request-row")).to_have_count(1)
    one.page.get_by_role("button", name="Next step").click()
    expect(one.page.locator(".timeline-words")).to_contain_text("Step 2 of 2")


def test_a_server_without_look_says_how_to_allow_it_in_the_language_of_the_page(served, tab):
    one = tab(served.url, language="zh-CN").open("#/cache?model=base")
    body = json.dumps({"error": {"message": "traces and the cache are not shown on 1.2.3.4."}})
    one.page.route("**/look/**", lambda route: route.fulfill(status=403, body=body))
    one.page.get_by_role("button", name="运行", exact=True).click()
    state = one.page.locator("[data-state=not-applicable]")
    expect(state).to_contain_text("weft serve --look")
    assert "此服务器" in state.inner_text()


def test_a_model_without_examples_offers_general_ones(served, tab):
    page = open_cache(tab, served.url)
    assert page.locator(".chip").count() == 3
    page.locator(".chip").first.click()
    text = page.locator(".chip").first.inner_text()
    assert page.get_by_label("First prompt").input_value() == text
