"""Beam searches of the Cache view: the tree of the hypotheses, at any moment."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import expect

from tests.browser.test_cache import answers_of, open_cache

ROWS = """
async (lists) => {
  const { beamRows } = await import("/assets/cache_beams.js");
  return beamRows(lists);
}
"""


def row(ids: list[int], depth: int, parent: int | None, alive: int) -> dict[str, Any]:
    return {"ids": ids, "depth": depth, "parent": parent, "alive": alive}


def test_common_tokens_stand_once_and_given_up_branches_stay(served, tab):
    one = tab(served.url).open("#/cache")
    lists = [[[5], [6]], [[5, 1], [5, 2]], [[5, 1, 9], [5, 1, 8]]]
    assert one.page.evaluate(ROWS, lists) == [
        row([5, 1], 0, None, 2),
        row([8], 1, 0, 1),
        row([9], 1, 0, 1),
        row([2], 1, 0, 0),
        row([6], 0, None, 0),
    ]
    assert one.page.evaluate(ROWS, [[[5, 1]], [[5, 1]]]) == [row([5, 1], 0, None, 1)]
    assert one.page.evaluate(ROWS, []) == []


def test_the_branches_of_a_beam_search_are_those_of_the_engine(served, tab):
    page = open_cache(tab, served.url)
    answers = answers_of(page)
    page.get_by_label("First prompt").fill("the cat sat on a mat")
    page.get_by_label("Search").select_option("4")
    page.get_by_role("button", name="Run", exact=True).click()
    for _ in range(4):
        with page.expect_response("**/step"):
            page.get_by_role("button", name="Next step").click()
    picture = page.locator(".beam-picture")
    expect(picture).to_be_visible()
    (request,) = answers[-1]["snapshot"]["requests"]
    hypotheses = {tuple(one["tokens"]) for one in request["sequences"]}
    assert len(hypotheses) == 4
    assert {tuple(one) for one in answers[-1]["steps"][-1]["beams"]["a"]} == hypotheses
    expect(picture).to_have_attribute("aria-label", re.compile("^4 hypotheses go on"))
    page.get_by_role("button", name="Back").click()
    page.get_by_role("button", name="Back").click()
    earlier = answers[-3]["steps"][-1]["beams"]["a"]
    assert {len(one) for one in earlier} != {len(one) for one in hypotheses}
    page.get_by_role("button", name="To the end").click()
    expect(page.get_by_role("button", name="To the end")).to_be_disabled()
    expect(page.locator(".request-row")).to_contain_text("finished")
    assert page.locator(".is-given").count() > 0
