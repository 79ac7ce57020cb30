"""The shell of the page: views, languages, themes, keys, and that it talks to no other host."""

from __future__ import annotations

import pytest

VIEWS = ("play", "walk", "cache")


@pytest.mark.parametrize("path", ["#/play", "#/walk", "#/cache", "docs"])
def test_a_page_is_complete_and_loads_nothing_from_elsewhere(served, tab, path):
    one = tab(served.url)
    if path == "docs":
        one.page.goto(f"{one.url}/docs")
    else:
        one.open(path)
        one.page.wait_for_selector(f".view-{path[2:]}", state="attached")
    one.page.wait_for_load_state("networkidle")
    assert one.requests
    one.check_quiet()


def test_views_are_in_the_address_and_the_back_button_works(served, tab):
    one = tab(served.url).open()
    for view in ("Walk", "Cache"):
        one.page.get_by_role("link", name=view, exact=True).click()
        one.page.wait_for_selector(f".view-{view.lower()}", state="attached")
        assert f"#/{view.lower()}" in one.page.url
    one.page.go_back()
    one.page.wait_for_selector(".view-walk", state="attached")
    one.check_quiet()


def test_a_view_is_loaded_when_it_is_first_opened(served, tab):
    one = tab(served.url).open("#/play")
    one.page.wait_for_selector(".view-play textarea")
    assert not any("walk" in url or "cache." in url for url in one.requests if ".css" not in url)
    for _ in range(2):
        one.page.get_by_role("link", name="Walk", exact=True).click()
        one.page.wait_for_selector(".view-walk textarea")
        one.page.get_by_role("link", name="Play", exact=True).click()
        one.page.wait_for_selector(".view-play textarea")
    files = [url.rpartition("/")[2] for url in one.requests]
    assert files.count("walk.js") == files.count("walk.json") == 1 and "cache.js" not in files
    one.check_quiet()


def test_a_view_that_cannot_be_loaded_is_shown_once_the_server_is_back(served, tab):
    one = tab(served.url).open("#/play")
    one.page.wait_for_selector(".view-play textarea")
    one.context.set_offline(True)
    one.page.get_by_role("link", name="Cache").click()
    one.page.wait_for_selector(".view-cache [data-state=offline]")
    one.context.set_offline(False)
    one.page.wait_for_selector(".view-cache textarea")
    assert one.page.locator("[data-state=offline]").count() == 0
    one.check_quiet("net::ERR")


def test_the_language_is_chosen_by_the_browser_and_by_a_button_that_is_remembered(served, tab):
    one = tab(served.url, language="zh-CN").open()
    one.page.get_by_role("link", name="试用").wait_for()
    assert one.page.get_attribute("html", "lang") == "zh"
    one.page.get_by_role("button", name="English").click()
    one.page.get_by_role("link", name="Play", exact=True).wait_for()
    one.page.reload()
    one.page.get_by_role("link", name="Play", exact=True).wait_for()
    one.check_quiet()


def test_the_theme_follows_the_system_until_one_is_chosen(served, tab):
    background = "getComputedStyle(document.body.parentElement).backgroundColor"
    one = tab(served.url, theme="dark").open()
    assert one.page.evaluate(background) == "rgb(19, 20, 22)"
    button = one.page.get_by_role("button", name="Theme")
    button.click()
    assert one.page.evaluate(background) == "rgb(255, 255, 255)"
    one.page.reload()
    one.page.wait_for_selector("main > *", state="attached")
    assert one.page.evaluate(background) == "rgb(255, 255, 255)"


def test_the_list_of_keys_opens_and_closes_by_keyboard(served, tab):
    one = tab(served.url).open("#/walk")
    one.page.keyboard.press("?")
    one.page.get_by_role("dialog").wait_for()
    one.page.keyboard.press("Escape")
    one.page.wait_for_selector("dialog", state="detached")
    one.check_quiet()


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("width", [360, 720, 1024, 1440])
def test_nothing_scrolls_sideways(served, tab, view, width):
    one = tab(served.url, width=width).open(f"#/{view}")
    one.page.wait_for_selector(f".view-{view}", state="attached")
    assert not one.scrolls_sideways()
