"""Walk in a real browser, with real traces: every number shown is the trace's, in every state."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from urllib.parse import urlencode
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from playwright.sync_api import Page
from starlette.responses import JSONResponse

from tests.browser.harness import Tab
from tests.browser.trace_server import TraceServer
from tests.engine.tiny import tiny
from weft.look.next_tokens import sample_next
from weft.look.rankings import find_heads
from weft.sampling.logits_processors import WARPERS, SamplingRow, process_logits
from weft.sampling.params import SamplingParams

TEXT, TARGET = "我吃了苹果，它很甜", "the cat sat"
OTHER = "a dog ate two apples"
HOSTILE = '<img src=x onerror="window.hacked=1">\u202egnp'
Open = Callable[..., Tab]


@pytest.fixture(scope="module")
def server() -> Iterator[TraceServer]:
    models = {
        "translator": tiny(),
        "base": tiny("decoder", max_len=200),
        "vectors": tiny("encoder"),
    }
    with TraceServer(models, [{"text": TEXT}, {"text": OTHER}]) as one:
        yield one


@pytest.fixture
def walk(server: TraceServer, tab: Open) -> Callable[..., Tab]:
    """Opens Walk with a text and waits until all panels show it."""

    def show(text: str = TEXT, model: str = "translator", target: str = "", **options) -> Tab:
        return open_walk(tab(server.url, **options), model, text, target)

    return show


def open_walk(tab: Tab, model: str, text: str, target: str = "", **state: object) -> Tab:
    fields = {"model": model, "text": text, "target": target, **state}
    query = urlencode({name: value for name, value in fields.items() if value != ""})
    tab.open(f"#/walk?{query}")
    tab.page.wait_for_selector("#output .figure-line:not(:empty), .absent")
    return tab


def open_all(page: Page) -> None:
    """Open every panel, and wait until they have drawn."""
    folded = "document.querySelectorAll('.figure-toggle[aria-expanded=false]')"
    page.evaluate(f"{folded}.forEach((one) => one.click())")
    page.locator(".is-dimmed").first.wait_for(state="detached")
    page.locator("#kinds .bars").first.wait_for()


def line_of(page: Page, panel: str) -> str:
    return page.locator(f"#{panel} .figure-line").inner_text()


def share(value: float, digits: int = 2) -> str:
    """A weight as the page prints it."""
    smallest = 10**-digits
    if 0 < value < smallest / 2:
        return f"<{smallest:.{digits}f}"
    if 1 - smallest / 2 < value < 1:
        return f">{1 - smallest:.{digits}f}"
    return f"{value:.{digits}f}"


def select(page: Page, **patch: object) -> None:
    """Change the selection as a link would."""
    page.evaluate(
        """(patch) => {
          const [path, query] = location.hash.split("?");
          const fields = new URLSearchParams(query);
          for (const [name, value] of Object.entries(patch)) fields.set(name, value);
          location.hash = `${path}?${fields}`;
        }""",
        patch,
    )


def test_the_number_shown_for_a_pair_is_that_of_python_and_of_the_api(walk, server):
    page = walk(target=TARGET).page
    query, key, layer, head = 3, 1, 1, 2
    select(page, stack="encoder", token=query, key=key, layer=layer, head=head)
    trace = server.last
    weights = trace.array(f"encoder.{layer}.attention.weights")[head, query]
    pair = page.locator(".inspector .facts").get_by_text("looks at")
    pair.filter(has_text=f"head {head}").wait_for()
    assert f"with {share(weights[key], 4)}" in pair.inner_text()
    assert share(weights[key], 4) in page.locator("#attention .readout").inner_text()
    strongest = int(weights.argmax())
    words = f"looks most at {trace.tokens['src'][strongest].text}: {share(weights[strongest])}"
    assert words in line_of(page, "attention")


def test_the_score_of_a_pair_is_the_sum_of_its_products_and_gives_the_weight(walk, server):
    page = walk().page
    select(page, stack="encoder", token=3, key=2, layer=0, head=1)
    trace = server.last
    q, k = (trace.array(f"encoder.0.attention.{name}")[1] for name in ("q", "k"))
    scores = trace.array("encoder.0.attention.scores")[1, 3]
    weights = trace.array("encoder.0.attention.weights")[1, 3]
    line = f"{share(weights[2])} = softmax({signed(scores[2])})"
    page.locator("#score .figure-line").get_by_text(line, exact=True).wait_for()
    assert f"add up to {signed(float(q[3] @ k[2]))}" in page.locator("#score").inner_text()


def signed(value: float, digits: int = 2) -> str:
    return f"{value:.{digits}f}".replace("-", "\u2212")


def test_the_table_of_the_map_has_every_weight_of_the_head(walk, server):
    page = walk(OTHER, "base").page
    select(page, layer=1, head=0)
    page.locator("#attention").get_by_text("layer 1 head 0").first.wait_for()
    page.locator("#attention .fold summary").get_by_text("As table").click()
    cells = page.locator("#attention .table-box td").all_inner_texts()
    weights = server.last.array("decoder.1.attention.weights", head=0)
    np.testing.assert_allclose(np.array(cells, float), weights.ravel(), atol=1e-4)


def test_heads_are_found_as_in_python_and_the_page_says_if_none_does_it(walk, server):
    page = walk().page
    trace = server.last
    words = [word.text for word in trace.words["src"]]
    finder = page.locator("#heads .finder")
    for query, key in [(words[0], words[-1]), (words[-1], words[0]), (words[1], words[1])]:
        finder.locator("select").nth(0).select_option(str(words.index(query)))
        finder.locator("select").nth(1).select_option(str(words.index(key)))
        found = find_heads(trace, query, key, "encoder")
        best, mean = found.heads[0], found.mean
        count = len(found.first)
        start = (
            f"{count} of {len(found.heads)} heads rank “{key}”"
            if count
            else f"No head ranks “{key}”"
        )
        text = finder.inner_text()
        assert start in text
        assert (
            f"layer {best.name.layer} head {best.name.head}" in text and share(best.weight) in text
        )
        assert f"Mean of all heads: rank {mean.rank} ({share(mean.weight)})" in text
        if found.rollout:
            assert f"rank {found.rollout.rank} ({share(found.rollout.weight)})" in text


def test_two_texts_show_different_numbers(walk):
    lines = []
    for text in (TEXT, OTHER):
        page = walk(text, "base").page
        lines.append({panel: line_of(page, panel) for panel in ("map", "score", "heads", "output")})
    assert all(lines[0][panel] != lines[1][panel] for panel in lines[0])


def test_the_next_token_and_its_settings_are_those_of_the_sampler(walk, server):
    page = walk(OTHER, "base").page
    trace, last = server.last, len(server.last.tokens["src"]) - 1
    select(page, token=last)
    logits = trace.array("decoder.logits", row=last)
    best = trace.candidates["decoder"][last][0]
    page.locator("#output .figure-line").get_by_text(f"{share(best.p)};").wait_for()
    for name, value in (("Temperature", "0.7"), ("Top-p", "0.8"), ("Seed", "5")):
        slider = page.locator("#output").get_by_label(name)
        slider.fill(value)
    params = SamplingParams(temperature=0.7, top_p=0.8, seed=5)
    ids = [token.id for token in trace.tokens["src"]]
    sampled = sample_next(
        torch.from_numpy(logits.copy()), server.models["base"].tokenizer, params, ids
    )
    kept = process_logits(torch.from_numpy(logits.copy()), SamplingRow(params), WARPERS)
    struck = page.locator("#output .bars .struck").count()
    assert struck == 20 - min(20, int(torch.isfinite(kept).sum()))
    names = {one.id: one.text for one in trace.candidates["decoder"][last]}
    assert sampled is not None and sampled.u is not None
    expected = names.get(sampled.id, f"#{sampled.id}").strip()
    readout = page.locator("#output .readout").inner_text()
    assert f"{share(sampled.u, 4)} falls on “{expected}"[:20] in readout


def test_logits_change_by_an_ablated_head_as_in_python(walk, server):
    page = walk(OTHER, "base").page
    page.locator("#heads .head-cell input").nth(1).check()
    line = page.locator("#heads .ablation-line")
    line.wait_for()
    trace = server.last
    position = int(re.search(r"token=(\d+)", page.url)[1])
    best = trace.array("decoder.logits", row=position) - trace.array(
        "decoder.logits_delta", row=position
    )
    delta = trace.array("decoder.logits_delta", row=position)[int(best.argmax())]
    assert [str(head) for head in trace.ablated] == ["decoder.0.1"]
    sign = "+" if delta > 0 else ""
    assert f"changes by {sign}{signed(float(delta), 4)}" in line.inner_text()


def test_panels_that_do_not_apply_say_why_and_leave_the_rail(walk):
    page = walk(OTHER, "vectors").page
    rail = page.locator(".rail").inner_text()
    assert "One head" in rail
    assert not {"Next token", "Logit lens", "Source and target"} & set(rail.splitlines())
    absent = page.locator(".absent").inner_text()
    assert "without an LM head" in absent and "one stack of layers" in absent
    assert page.locator("#output").count() == 0


def test_hostile_text_stays_text_and_bytes_are_hex(walk):
    tab = walk(f"{HOSTILE} \U0001f600", "base")
    page = tab.page
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img").count() == 0
    tokens = page.locator("#tokens .token-chip").all_inner_texts()
    assert {"F0", "9F", "98", "80"} <= set(tokens)
    assert "\ufffd" not in page.inner_text("body")
    tab.check_quiet()


def test_everything_is_reached_by_keyboard_and_read_aloud(walk):
    page = walk().page
    before = page.url
    page.locator("#attention .matrix").focus()
    page.keyboard.press("ArrowUp")
    page.wait_for_url(lambda url: url != before)
    assert "looks" in page.locator("[aria-live=polite].visually-hidden").inner_text()
    page.keyboard.press("]")
    page.keyboard.press(".")
    assert re.search(r"layer=1", page.url)
    page.locator("#map .map").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert page.locator(".stage").is_visible() and not page.locator("#map .map").is_visible()
    page.keyboard.press("Escape")
    assert page.locator("#map .map").is_visible() and not page.locator(".stage").is_visible()


def test_the_tour_has_eight_steps_with_terms(walk):
    page = walk(target=TARGET).page
    page.get_by_role("button", name="Tour").click()
    titles = []
    for step in range(8):
        titles.append(page.locator(".tour h2").inner_text())
        if step < 7:
            page.locator(".tour").get_by_role("button", name="Next").click()
    assert len(set(titles)) == 8
    page.locator(".tour .term").first.click()
    assert page.locator(".term-note:popover-open").count() == 1


def test_a_saved_figure_is_xml_with_labels_as_text(walk):
    page = walk().page
    for panel in ("map", "attention", "score", "output"):
        section = page.locator(f"#{panel}")
        section.locator(".fold summary").get_by_text("Save").click()
        with page.expect_download() as download:
            section.get_by_role("button", name="SVG").click()
        root = ElementTree.parse(download.value.path()).getroot()
        texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
        assert any(texts) and not list(root.iter("{http://www.w3.org/2000/svg}foreignObject"))


@pytest.mark.parametrize(
    ("failure", "state"),
    [
        (JSONResponse({"error": {"message": "m"}}, 429, {"retry-after": "1"}), "busy"),
        (JSONResponse({"error": {"message": "no API key"}}, 401), "key"),
        (JSONResponse({"error": {"message": "boom"}}, 500), "error"),
        (JSONResponse({"error": {"message": "only with --look"}}, 403), "not-applicable"),
    ],
)
def test_each_failure_has_its_state_in_place(server, tab, failure, state):
    server.failures.append(failure)
    page = tab(server.url).open(f"#/walk?{urlencode({'model': 'base', 'text': OTHER})}").page
    page.locator(f"[data-state={state}]").wait_for()


def test_an_empty_box_offers_examples_and_a_slow_trace_can_be_stopped(server, tab):
    page = tab(server.url).open("#/walk?model=base").page
    page.locator("[data-state=empty]").wait_for()
    assert page.get_by_label("Text", exact=True).input_value() == TEXT
    server.delay = 2.5
    page.get_by_role("button", name="Run").click()
    page.get_by_role("button", name="Stop").click()
    page.locator("[data-state=empty]").wait_for()
    server.delay = 0.0


def test_a_dropped_trace_is_run_again_by_itself(walk, server):
    page = walk(OTHER, "base").page
    server.traces.clear()
    select(page, token=2)
    page.locator(".view-walk > .hint").get_by_text("so it was run again").wait_for()
    assert len(server.traces) == 1


@pytest.mark.parametrize("language", ["en-US", "zh-CN"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_all_panels_are_accessible_and_fit_a_narrow_screen(walk, language, theme):
    tab = walk(target=TARGET, width=360, theme=theme, language=language)
    open_all(tab.page)
    assert not tab.scrolls_sideways()
    assert tab.violations() == []
    tab.check_quiet()
