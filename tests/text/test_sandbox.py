"""Templates that want to reach out of the sandbox, or to take all memory or time."""

import contextlib
import resource
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.text.chat_templates import talk
from tests.text.hostile_templates import END, GREEDY, REACHING, TEN
from weft.core.errors import DataError
from weft.text.chat import ChatTemplate

MESSAGES = talk(("user", "hello"), ("assistant", "world"))
MAX_BYTES = 256 << 20
MAX_SECONDS = 4.0
"""Of processor time; the sandbox itself stops after one, but looks at the clock now and then."""


def refused(source: str) -> str:
    """The one sentence that a template ends with; it must end soon, and with little memory."""
    before, start = resource.getrlimit(resource.RLIMIT_AS), time.thread_time()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MAX_BYTES, before[1]))
    try:
        with pytest.raises(DataError) as error:
            ChatTemplate(source).render(MESSAGES)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert time.thread_time() - start < MAX_SECONDS
    assert "MemoryError" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", REACHING)
def test_a_template_cannot_reach_out(name):
    reason = refused(REACHING[name])
    assert reason.startswith("the chat template ")
    assert "root:" not in reason and "uid=" not in reason


@pytest.mark.parametrize("name", GREEDY)
def test_a_template_that_wants_too_much_ends_soon(name):
    reason = refused(GREEDY[name])
    assert reason.startswith("the chat template ")
    assert len(reason) < 600


def test_the_conversation_is_never_changed():
    messages = [{"role": "user", "content": "a", "x": [1]}]
    for source in ("{{ messages.append(1) }}", "{{ messages[0].x.append(2) }}"):
        with pytest.raises(DataError, match="it reads 'append' of a list"):
            ChatTemplate(source).render(messages)
    assert messages == [{"role": "user", "content": "a", "x": [1]}]


def test_a_hidden_attribute_is_an_error_even_where_nothing_is_done_with_it():
    for source in (
        "{{ ''.__class__ }}",
        "{% set x = ''.__class__ %}",
        "{{ ''.__class__ is defined }}",
    ):
        with pytest.raises(DataError, match="it reads '__class__' of a str"):
            ChatTemplate(source).render(MESSAGES)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% for %}", "cannot be used: .*end of statement|cannot be used: .*expected"),
        ("{{ messages[0].content|nonsense }}", "cannot be used: No filter named 'nonsense'"),
        ("{% include 'x' %}", r"cannot be used: it uses \{% include %\}"),
        ("{{ a.b.c }}", "failed: 'a' is undefined"),
        ("{{ 1 / 0 }}", "failed: division by zero"),
        ("{{ 'a' * 10**9 }}", "failed: it makes a text of more than"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "failed: it calls itself without end"),
        ("{% for i in range(10**9) %}{% endfor %}", "failed: Range too big"),
        (TEN + TEN + END + END, "failed: it takes more than [0-9]+ steps"),
    ],
)
def test_the_reason_is_said_in_one_sentence(source, reason):
    with pytest.raises(DataError, match=f"the chat template {reason}"):
        ChatTemplate(source).render(MESSAGES)


@given(st.text(alphabet="{}%-+*~|'\"[]().,_ abmessages0129:=if\n", max_size=60))
def test_any_source_is_a_text_or_an_error_of_ours(source):
    with contextlib.suppress(DataError):
        ChatTemplate(source).render(MESSAGES)
