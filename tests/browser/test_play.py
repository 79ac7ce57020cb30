"""Play: what the models answer, token by token, in a real browser."""

from __future__ import annotations

import json
import math
from urllib.parse import parse_qs

import httpx
import pytest
from playwright.sync_api import Page

from tests.browser.scripted_page import field, run_text, scripted_page, wait_done, written

HOSTILE = '<img src=x onerror="window.hacked = 1"> \u202eabc\u202c <script>window.hacked=2</script>'
ANSWER = "It is blue \u82f9\u679c."


def test_a_base_model_opens_in_completion_and_continues_the_example(served, tab):
    one = tab(served.url, width=1440).open("#/play?model=base&temperature=0&max_tokens=20")
    one.page.get_by_role("button", name="Completion").wait_for()
    assert field(one.page).input_value() == "The capital of France is"
    run_text(one.page, "the cat sat")
    wait_done(one.page)
    body = {"model": "base", "prompt": "the cat sat", "max_tokens": 20, "temperature": 0}
    answer = httpx.post(f"{served.url}/v1/completions", json={**body, "logprobs": 5}).json()
    choice = answer["choices"][0]
    expected = choice["text"]
    if "\ufffd" not in expected:
        assert written(one.page).replace("\n", "") == expected.replace("\n", "")
    assert "\ufffd" not in written(one.page)
    one.page.locator(".written").focus()
    one.page.keyboard.press("Home")
    shown = one.page.locator(".inspector-selection .facts dd").first.inner_text()
    assert abs(float(shown.strip("<>")) - math.exp(choice["logprobs"]["token_logprobs"][0])) < 1e-3
    assert "token" in one.page.locator(".run-times").inner_text()
    one.check_quiet()


def test_a_conversation_has_turns_a_system_prompt_and_cached_tokens(tab):
    prompts = []

    def answer(prompt):
        prompts.append(prompt)
        return ANSWER

    with scripted_page(answer) as server:
        one = tab(server.url).open()
        one.page.get_by_text("System prompt").first.click()
        one.page.get_by_label("System prompt").fill("Be brief.")
        run_text(one.page, "Why?")
        wait_done(one.page)
        assert written(one.page) == ANSWER
        run_text(one.page, "And now?")
        wait_done(one.page, 2)
        assert prompts[0].count("Be brief.") == 1 and "Why?" in prompts[0]
        assert prompts[1].index("Why?") < prompts[1].index(ANSWER) < prompts[1].index("And now?")
        times = one.page.locator(".run-times").last.inner_text()
        assert "from the cache" in times and " 0 of them" not in times
        one.check_quiet()


def test_an_answer_can_be_regenerated_and_a_message_edited(tab):
    numbers = iter(range(10))

    with scripted_page(lambda prompt: f"answer {next(numbers)}") as server:
        one = tab(server.url).open()
        run_text(one.page, "first")
        wait_done(one.page)
        one.page.get_by_role("button", name="Regenerate").click()
        one.page.locator(".turn").get_by_text("answer 1").wait_for()
        wait_done(one.page)
        assert one.page.locator(".turn").count() == 2
        run_text(one.page, "second")
        wait_done(one.page, 2)
        one.page.get_by_role("button", name="Edit and resend").first.click()
        one.page.locator(".edit-form textarea").fill("other")
        one.page.get_by_role("button", name="Resend", exact=True).click()
        one.page.locator(".turn").get_by_text("answer 3").wait_for()
        wait_done(one.page)
        turns = one.page.locator(".turn").all_inner_texts()
        assert [list(filter(None, text.split("\n")))[1] for text in turns] == ["other", "answer 3"]
        one.check_quiet()


def limit_download(page: Page, bytes_per_second: int) -> None:
    limits = {"offline": False, "latency": 0, "uploadThroughput": -1}
    session = page.context.new_cdp_session(page)
    session.send(
        "Network.emulateNetworkConditions", {**limits, "downloadThroughput": bytes_per_second}
    )


def test_a_run_can_be_stopped_and_keeps_what_was_written(served, tab):
    one = tab(served.url).open("#/play?model=base&max_tokens=1900&seed=1")
    limit_download(one.page, bytes_per_second=20_000)  # the model writes faster than one can click
    run_text(one.page, "the cat")
    one.page.locator(".written-token").nth(5).wait_for()
    one.page.get_by_role("button", name="Stop").click()
    one.page.locator(".run[data-state=stopped]").wait_for()
    assert len(written(one.page)) >= 5
    assert "stopped" in one.page.locator(".run-times").inner_text()
    one.page.get_by_role("button", name="Continue", exact=True).wait_for()
    one.check_quiet()


def test_the_rate_of_an_answer_that_came_in_one_piece_is_not_shown(served, tab):
    one = tab(served.url).open("#/play?model=base&max_tokens=2&seed=1")
    run_text(one.page, "the cat")
    wait_done(one.page)
    times = one.page.locator(".run-times").last.inner_text()
    assert "2 tokens written" in times and "tokens/s" not in times
    two = tab(served.url).open("#/play?model=base&max_tokens=400&seed=1")
    limit_download(two.page, bytes_per_second=60_000)
    run_text(two.page, "the cat")
    wait_done(two.page)
    assert "tokens/s" in two.page.locator(".run-times").last.inner_text()


def test_a_translation_has_alternatives(served, tab):
    one = tab(served.url).open("#/play?model=translator&alternatives=2&max_tokens=12")
    run_text(one.page, "the cat sat")
    wait_done(one.page)
    one.page.locator(".alternatives li").nth(2).wait_for()
    body = {"model": "translator", "q": "the cat sat", "alternatives": 2}
    answer = httpx.post(f"{served.url}/translate", json=body).json()
    texts = [answer["translatedText"], *answer["alternatives"]]
    assert one.page.locator(".alternatives li").all_inner_texts() == texts
    one.check_quiet()


def test_embeddings_show_the_cosines_of_the_api(served, tab):
    texts = ["the cat", "a dog", "mat"]
    one = tab(served.url).open("#/play?model=vectors")
    run_text(one.page, "\n".join(texts))
    wait_done(one.page)
    answer = httpx.post(f"{served.url}/v1/embeddings", json={"model": "vectors", "input": texts})
    vectors = [item["embedding"] for item in answer.json()["data"]]
    one.page.get_by_text("As table").click()
    for row, first in enumerate(vectors):
        for column, second in enumerate(vectors):
            cosine = sum(a * b for a, b in zip(first, second, strict=True))
            cell = one.page.locator("tbody tr").nth(row).locator("td").nth(column).inner_text()
            assert abs(float(cell.replace("\u2212", "-")) - cosine) < 1e-3
    one.check_quiet()


def test_the_address_restores_text_parameters_and_conversation(tab):
    text = "a & b = c # \u82f9\u679c ?"
    with scripted_page(ANSWER) as server:
        one = tab(server.url).open()
        run_text(one.page, "first")
        wait_done(one.page)
        one.page.get_by_label("Temperature").fill("0.5")
        one.page.get_by_label("Temperature").press("Tab")
        field(one.page).fill(text)
        one.page.wait_for_url("**/*text=*")
        query = parse_qs(one.page.url.partition("?")[2])
        assert query["text"] == [text] and query["temperature"] == ["0.5"]
        assert json.loads(query["turns"][0])[1] == {"role": "assistant", "content": ANSWER}
        other = tab(server.url)
        other.page.goto(one.page.url)
        other.page.locator(".turn").nth(1).wait_for()
        assert field(other.page).input_value() == text
        assert other.page.get_by_label("Temperature").input_value() == "0.5"
        assert ANSWER in other.page.locator(".turn").nth(1).inner_text()
        other.check_quiet()


@pytest.mark.parametrize("text", [HOSTILE, "x" * 10_000], ids=["markup", "long"])
def test_hostile_text_stays_text(tab, text):
    answer = text[:100]
    with scripted_page(answer, max_len=30_000) as server:
        one = tab(server.url, width=360).open("#/play?max_tokens=2000")
        run_text(one.page, text)
        wait_done(one.page)
        assert written(one.page).strip() == answer.strip()
        assert text.strip() in one.page.locator(".turn-user").inner_text()
        assert one.page.evaluate("window.hacked") is None
        assert not one.scrolls_sideways()
        one.check_quiet()


def test_bytes_that_are_no_character_are_hex(tab):
    """A token for each byte: a Chinese character has three; the answer ends inside one."""
    with scripted_page("a\u82f9\u679c", None) as server:
        one = tab(server.url).open("#/play?max_tokens=6")
        run_text(one.page)
        wait_done(one.page)
        assert written(one.page) == "a\u82f9E6 9E"
        one.page.locator(".written-token").nth(1).click()
        assert one.page.locator(".inspector-piece").inner_text() == "B9"
        assert "\ufffd" not in one.page.locator("body").inner_text()
        one.check_quiet()


def test_text_only_grows_and_nothing_jumps_while_it_streams(tab):
    with scripted_page("many words in a row, " * 10) as server:
        one = tab(server.url, width=720).open("#/play?max_tokens=150")
        field(one.page).focus()
        one.page.wait_for_timeout(600)  # shifts within 500 ms of an input do not count
        before = one.layout_shift()
        run_text(one.page, "go")
        wait_done(one.page)
        assert one.layout_shift() - before < 0.02
        assert one.page.locator(".written-token").count() == 150


def test_code_for_shell_and_python_has_the_text_quoted(served, tab):
    one = tab(served.url).open("#/play?model=base")
    field(one.page).fill('it\'s "x"; $HOME\n\u82f9')
    code = one.page.locator(".code")
    assert "'\\''" in code.inner_text() and "/v1/completions" in code.inner_text()
    one.page.get_by_role("button", name="Python").click()
    assert 'm.generate("it\'s \\"x\\"; $HOME\\n\u82f9"' in code.inner_text()
    one.page.get_by_role("button", name="CLI").click()
    assert "weft generate" in code.inner_text()
    one.check_quiet()


def test_code_after_an_answer_asks_the_last_question_again(tab):
    with scripted_page(ANSWER) as server:
        one = tab(server.url).open()
        run_text(one.page, "first question")
        wait_done(one.page)
        code = one.page.locator(".code")
        body = json.loads(code.inner_text().split("-d '")[1].rstrip("'"))
        assert body["messages"] == [{"role": "user", "content": "first question"}]
        one.page.get_by_role("button", name="CLI").click()
        assert code.inner_text().startswith("printf '%s\\n' 'first question' | weft chat")
        field(one.page).fill("second question")
        one.page.get_by_role("button", name="curl").click()
        assert "second question" in code.inner_text() and '"assistant"' in code.inner_text()
        one.check_quiet()


def test_a_key_is_asked_for_in_place_and_used_from_then_on(tab):
    with scripted_page(ANSWER, keys={"alice": "key-a"}) as server:
        one = tab(server.url).open()
        one.page.get_by_label("API key").fill("key-a")
        one.page.get_by_role("button", name="Use key").click()
        one.page.wait_for_selector(".view-play")
        run_text(one.page, "hello")
        wait_done(one.page)
        assert written(one.page) == ANSWER and "key-a" not in one.page.url
        one.check_quiet("401")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_violation(tab, theme):
    with scripted_page(ANSWER) as server:
        one = tab(server.url, theme=theme).open()
        field(one.page).wait_for()  # the view is loaded
        assert one.violations() == []
        run_text(one.page, "hello")
        wait_done(one.page)
        one.page.locator(".written").focus()
        one.page.keyboard.press("ArrowRight")
        assert one.violations() == []
        one.check_quiet()


def test_a_reader_who_is_not_at_the_end_is_left_there(tab):
    with scripted_page("a line of text\n" * 200) as server:
        one = tab(server.url, height=500).open("#/play?max_tokens=3000")
        run_text(one.page, "go")
        one.page.locator(".written-token").nth(300).wait_for()
        one.page.evaluate("scrollTo(0, 0)")
        button = one.page.get_by_role("button", name="Jump to end")
        button.wait_for()
        assert one.page.evaluate("scrollY") == 0
        button.click()
        wait_done(one.page)
        end = "document.documentElement.scrollHeight - innerHeight - scrollY"
        assert one.page.evaluate(end) <= 2


def test_candidates_are_shown_on_hover_and_by_keyboard(tab):
    with scripted_page(ANSWER) as server:
        one = tab(server.url, width=1000, language="zh-CN").open()
        run_text(one.page, "hello")
        wait_done(one.page)
        one.page.locator(".written-token").nth(3).hover()
        popover = one.page.get_by_role("tooltip")
        popover.wait_for()
        assert popover.locator(".candidate").count() >= 5
        one.page.mouse.move(1, 1)
        popover.wait_for(state="hidden")
        one.page.locator(".written").focus()
        for _ in range(2):
            one.page.keyboard.press("ArrowRight")
        assert one.page.locator(".inspector-piece").inner_text() == ANSWER[1]
        assert "概率" in one.page.locator("[aria-live]").inner_text()
        one.check_quiet()
