"""The live view: aligned, within its size, and everything left out is counted."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.tiny import tiny
from weft.look.terminal import display_width
from weft.look.watch_state import (
    CacheState,
    NestedNode,
    PageState,
    WatchedSample,
    WatchedToken,
    WatchLog,
)
from weft.look.watch_view import (
    ViewSize,
    log_line,
    page_lines,
    probability,
    text_lines,
    token_lines,
    tree_lines,
    watch_view,
)

CHECKPOINT = tiny("decoder")
LABELS = ["apple", "\u82f9\u679c", "\u2581the", "<E8 8B>", "\\n", "e\u0301", "x" * 30]


def ids(text: str) -> tuple[int, ...]:
    return tuple(CHECKPOINT.tokenizer.encode(text, add_special=False))


def tree() -> NestedNode:
    left = NestedNode(ids("\u82f9\u679c\uff0c\u5b83\u5f88\u751c"), 2, 1, ())
    right = NestedNode(ids("two apples"), 1, 0, ())
    return NestedNode((), 0, 1, (NestedNode(ids("\u6211\u5403\u4e86"), 1, 1, (left, right)),))


def cache_state(pages=(), roots=(), page_size=16) -> CacheState:
    return CacheState(7, page_size, 8190, tuple(pages), roots, 4, 0)


def log_of(num_tokens: int, num_samples: int = 1, is_ascii: bool = False) -> WatchLog:
    log = WatchLog(CHECKPOINT.tokenizer, is_ascii)
    log.samples = [WatchedSample("\u6211\u5403\u4e86", "ab " * 50, 3) for _ in range(num_samples)]
    labels = itertools.cycle(LABELS)
    others = (("apples", 0.09), ("\u679c", 0.03), ("fruit", 0.001))
    log.tokens = [
        WatchedToken(step, step % num_samples, next(labels), 0.81, others)
        for step in range(num_tokens)
    ]
    return log


@pytest.mark.parametrize("size", [ViewSize(80, 24), ViewSize(60, 20), ViewSize(20, 6)])
@pytest.mark.parametrize("num_samples", [1, 3, 40])
@pytest.mark.parametrize("num_pages", [0, 5, 2000])
def test_the_view_fits_its_size(size, num_samples, num_pages):
    pages = [PageState(page, page % 17, page % 4, page % 3 == 0) for page in range(num_pages)]
    cache = cache_state(pages, (tree(),) * 9)
    lines = watch_view(log_of(60, num_samples), cache, "weft generate runs/demo", 61.5, size)
    assert len(lines) <= size.height
    assert max(map(display_width, lines)) <= size.width
    assert lines[-1].endswith("n next step"[: size.width]) or size.width < 40


def test_the_columns_of_the_tokens_are_aligned_whatever_their_width():
    lines = token_lines(log_of(7).tokens, 80, 8, False)
    assert len(lines) == 8
    columns = {display_width(line[: line.index("0.81")]) for line in lines[1:]}
    assert len(columns) == 1
    assert {display_width(line[: line.index("apples 0.09")]) for line in lines[1:]} == {
        columns.pop() + 6
    }


def test_alternatives_that_do_not_fit_are_left_out_as_a_whole():
    (_, line) = token_lines(log_of(1).tokens, 46, 2, False)
    assert line.endswith("\u679c 0.03") and display_width(line) <= 46


def test_pages_are_cells_then_shades_then_a_number():
    cells = [PageState(1, 16, 2, True), PageState(2, 9, 1, False), PageState(3, 16, 0, True)]
    head, line = page_lines(cache_state(cells), 80, 1)
    assert line.strip() == "[####]x2 [###.] (####)"
    assert "2 in use, 1 only cached, of 8,190; 16 tokens each" in head
    many = [PageState(page, page % 17, 1, False) for page in range(100)]
    lines = page_lines(cache_state(many), 80, 3)
    assert len(lines) == 3 and sum(len(line.strip()) for line in lines[1:]) == 100
    lines = page_lines(cache_state(many * 9), 60, 3, is_ascii=True)
    *rows, last = (line.strip() for line in lines[1:])
    cells, note = last.split(" and ")
    assert sum(map(len, [*rows, cells])) + int(note.split()[0]) == 900
    assert max(map(display_width, lines)) <= 60 and all(map(str.isascii, lines))


def test_the_tree_is_drawn_with_pages_and_locks():
    assert tree_lines(cache_state(roots=(tree(),)), log_of(1), 80, 9) == [
        "tree   root",
        "       \u2514\u2500 \u6211\u5403\u4e86 (1 page, 1 lock)",
        "          \u251c\u2500 \u82f9\u679c\uff0c\u5b83\u5f88\u751c (2 pages, 1 lock)",
        "          \u2514\u2500 two apples (1 page)",
    ]
    lines = tree_lines(cache_state(roots=(tree(),)), log_of(1, is_ascii=True), 80, 9)
    assert lines[2:] == [
        "          +- \u82f9\u679c\uff0c\u5b83\u5f88\u751c (2 pages, 1 lock)",
        "          `- two apples (1 page)",
    ]


def test_a_tree_that_does_not_fit_is_counted_and_long_runs_keep_both_ends():
    lines = tree_lines(cache_state(roots=(tree(),) * 5), log_of(1), 80, 6)
    assert len(lines) == 6 and lines[-1].strip() == "and 15 more nodes"
    long = NestedNode((), 0, 0, (NestedNode(ids("the cat sat " * 9 + "on two mats"), 7, 0, ()),))
    (_, line) = tree_lines(cache_state(roots=(long,)), log_of(1), 60, 6)
    assert display_width(line) == 60 and "the cat" in line and "two mats (7 pages)" in line


def test_no_tree_and_an_empty_tree_are_said():
    assert "not of kind radix" in tree_lines(cache_state(roots=None), log_of(1), 80, 9)[0]
    assert "no page of 16 tokens is full" in tree_lines(cache_state(), log_of(1), 80, 9)[0]


def test_the_end_of_a_text_is_shown():
    sample = WatchedSample("\u6211", "\x1b[31m" + "\u679c" * 100 + "end", 3, "length")
    lines = text_lines([sample], 40, 2)
    assert len(lines) == 2 and lines[-1].endswith("\u679cend [length]")
    assert lines[0].startswith("text   ...") and max(map(display_width, lines)) <= 40
    assert "\\x1b[31m" in text_lines([sample], 300, 1)[0]
    lines = text_lines([WatchedSample("a", "", 0, "end"), *[WatchedSample("b")] * 3], 40, 3)
    assert lines == ["text 1 b", "text 2 b", "       and 2 more"]


@given(st.text(max_size=60), st.integers(12, 60), st.integers(1, 4))
def test_a_text_fits_whatever_it_is(text, width, height):
    lines = text_lines([WatchedSample("p", text)], width, height)
    assert len(lines) <= height and max(map(display_width, lines)) <= width


def test_probabilities_have_four_characters():
    assert [probability(one) for one in (0.0, 0.001, 0.005, 0.126, 1.0)] == [
        "0.00",
        "<.01",
        "0.01",
        "0.13",
        "1.00",
    ]


def test_a_log_line_has_all_of_a_token():
    token = WatchedToken(7, 1, "apple", 0.81, (("apples", 0.09), ("fruit", 0.03)))
    assert log_line(token, cache_state([PageState(1, 3, 1, False)]), True) == (
        'step 7  sample 1  "apple" p=0.81  also: "apples" 0.09  "fruit" 0.03  pages 1/8190  hit 4 '
        "tok"
    )
