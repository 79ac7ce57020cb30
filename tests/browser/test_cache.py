"""The Cache view: a scratch engine of the server, drawn at any moment of its past."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

FIRST = "the cat sat on the mat and a dog ate two apples while the cat sat"
SECOND = "the cat sat on the mat and a dog ate two apples while the bird sang"
HOSTILE = "<img src=x onerror=alert(1)> \u202ethe cat sat on the mat and a dog"


def open_cache(tab, url: str, model: str = "base", **options) -> Page:
    one = tab(url, **options).open(f"#/cache?model={model}")
    one.page.wait_for_selector(".view-cache > *", state="attached")
    return one.page


def run_prompts(page: Page, first: str = FIRST, second: str = SECOND) -> None:
    """Run the first prompt to its end, then send the second one."""
    page.get_by_label("First prompt").fill(first)
    page.get_by_label("Second prompt").fill(second)
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_role("button", name="To the end").click()
    expect(page.get_by_role("button", name="To the end")).to_be_disabled()
    page.get_by_role("button", name="Send second prompt").click()
    expect(page.locator(".request-row")).to_have_count(2)


def answers_of(page: Page) -> list[dict]:
    """The answers of the scratch engine, as they arrive."""
    answers: list[dict] = []

    def keep(response) -> None:
        if "/look/scratch" in response.url and response.request.method == "POST":
            answers.append(response.json())

    page.on("response", keep)
    return answers


def words_of_page(page: Page, number: int) -> str:
    return page.locator(f'[data-page="{number}"]').get_attribute("aria-label") or ""


@pytest.mark.parametrize("model", ["base", "translator"])
def test_the_pages_that_are_drawn_are_those_of_the_engine(served, tab, model):
    page = open_cache(tab, served.url, model)
    answers = answers_of(page)
    run_prompts(page)
    page.wait_for_timeout(100)  # the last answer is kept in another event
    snapshot = answers[-1]["snapshot"]
    held = {one["page"]: one for one in snapshot["pages"]}
    assert snapshot["num_pages"] == page.locator("[data-page]").count() == 24
    for number in range(1, snapshot["num_pages"] + 1):
        label = words_of_page(page, number)
        if number in held:
            rows, size = held[number]["rows"], snapshot["page_size"]
            assert label.startswith(f"Page {number}: {rows} of {size} rows"), label
        else:
            assert label == f"Page {number} is free."
    assert page.locator("[data-node]").count() == len(snapshot["nodes"])
    counts = [sum(one["owners"].values()) for one in held.values()]
    shared = sum(count > 1 for count in counts)
    line = f"{len(held)} of 24 pages are held: {shared} have several references"
    expect(page.locator("#cache-pool .figure-line")).to_contain_text(line)


def test_the_second_prompt_shares_the_pages_of_the_first(served, tab):
    page = open_cache(tab, served.url)
    answers = answers_of(page)
    run_prompts(page)
    page.wait_for_timeout(100)
    cached = answers[-1]["snapshot"]["requests"][1]["num_cached"]
    assert cached > 0 and cached % 4 == 0
    row = page.locator(".request-row").nth(1)
    expect(row).to_contain_text(f"{cached} tokens of the prompt came from the cache")
    page.get_by_role("button", name="Compare").click()
    expect(page.locator(".sharing")).to_contain_text("The first different token is at position")


def test_the_scenario_is_stepped_forth_and_back(served, tab):
    page = open_cache(tab, served.url)
    page.get_by_label("First prompt").fill(FIRST)
    page.get_by_role("button", name=re.compile("scripted scenario")).click()
    words = page.locator(".timeline-words")
    expect(words).to_contain_text("Step 1 of 1")
    page.locator("body").press("n")
    expect(words).to_contain_text("Step 2 of 2")
    second = [words_of_page(page, number) for number in range(1, 25)]
    page.get_by_role("button", name="To the end").click()
    expect(page.get_by_role("button", name="To the end")).to_be_disabled()
    slider = page.get_by_label("Timeline")
    assert int(slider.get_attribute("max") or 0) > 100
    page.get_by_role("button", name="Back").focus()
    while "Step 2 of" not in words.inner_text():
        page.keyboard.press("Enter")
    assert [words_of_page(page, number) for number in range(1, 25)] == second
    slider.press("ArrowRight")
    expect(words).to_contain_text("Step 3 of")


def test_a_page_and_its_node_are_selected_by_keyboard(served, tab):
    page = open_cache(tab, served.url)
    run_prompts(page)
    page.locator('[data-page="1"]').focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator('[data-page="2"]')).to_be_focused()
    expect(page.locator('[data-page="2"]')).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".inspector-title")).to_have_text("Page 2")
    assert page.locator(".tree-node.is-marked").count() == 1
    page.locator(".tree-node.is-marked").click()
    assert "is-marked" in (page.locator('[data-page="2"]').get_attribute("class") or "")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_and_hostile_text_stays_text(served, tab, theme):
    one = tab(served.url, theme=theme).open("#/cache?model=base")
    assert one.violations() == []
    run_prompts(one.page, HOSTILE, HOSTILE + " again")
    expect(one.page.locator(".request-prompt").first).to_contain_text(
        "<img src=x onerror=alert(1)>"
    )
    assert one.page.locator("main img").count() == 0
    assert one.violations() == []
    one.check_quiet()


@pytest.mark.parametrize("width", [360, 720, 1024, 1440])
def test_a_result_does_not_scroll_sideways(served, tab, width):
    one = tab(served.url, width=width).open("#/cache?model=base")
    run_prompts(one.page)
    assert not one.scrolls_sideways()


def test_each_tab_has_scratch_engines_of_its_own(served, tab):
    pages = [open_cache(tab, served.url) for _ in range(3)]  # one session has two
    for page in pages:
        page.get_by_role("button", name="Run", exact=True).click()
        expect(page.locator(".request-row")).to_have_count(1)
    pages[0].get_by_role("button", name="To the end").click()
    expect(pages[0].get_by_role("button", name="To the end")).to_be_disabled()


def test_an_encoder_has_one_sentence(served, tab):
    page = open_cache(tab, served.url, "vectors")
    expect(page.locator(".view-cache")).to_contain_text("no cache to show")
    assert page.locator("[data-state=not-applicable]").count() == 1


def test_an_error_of_the_server_is_shown_in_place(served, tab):
    page = open_cache(tab, served.url)
    page.get_by_label("Pages", exact=True).fill("8")
    page.get_by_label("First prompt").fill("the cat sat on the mat " * 40)
    page.get_by_role("button", name="Run", exact=True).click()
    page.wait_for_selector("[data-state=error]")
    assert "Retry" in page.locator("[data-state=error]").inner_text()
