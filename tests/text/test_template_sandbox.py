"""Templates cannot reach out of their helper process nor use all memory or time, and the helper
process starts, ends and is replaced as it should."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.text.chat_templates import CHATML, talk
from tests.text.hostile_templates import END, GREEDY, HARMLESS, REACHING, TEN
from weft.core.errors import DataError, WeftError
from weft.text import template_sandbox
from weft.text.chat_template import ChatTemplate
from weft.text.template_sandbox import RENDERER, SANDBOX, TemplateSandbox

MESSAGES = talk(("user", "hello"), ("assistant", "world"))
ECHO = "{{ messages[0].content }}"
ENDLESS = TEN + TEN + END + END


@pytest.fixture(scope="module")
def tight() -> Iterator[TemplateSandbox]:
    """A sandbox with less time and memory, so that what exceeds them ends sooner."""
    sandbox = TemplateSandbox(seconds=0.3, megabytes=160)
    yield sandbox
    sandbox.stop()


def helper_pid(sandbox: TemplateSandbox = SANDBOX) -> int:
    ChatTemplate("", sandbox=sandbox)
    assert sandbox.process is not None
    return sandbox.process.pid


def is_running(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not so after {seconds} s"
        time.sleep(0.01)


class PeakMemory(threading.Thread):
    """The highest resident memory (VmHWM) of one process in MB, read until it ends."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.status, self.is_done = Path(f"/proc/{pid}/status"), False
        self.peak = self.read()  # here, because a template can end before the thread has started
        self.start()

    def run(self) -> None:
        with contextlib.suppress(OSError, TypeError):  # TypeError: ended, so without the line
            while not self.is_done:
                self.peak = max(self.peak, self.read())
                time.sleep(0.002)

    def read(self) -> float:
        status = self.status.read_text(encoding="utf-8")
        return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1e3


def error_of(source: str, sandbox: TemplateSandbox = SANDBOX, most: float = 1.5) -> str:
    """The error of a template, which must come within `most` seconds and the memory limit."""
    memory = PeakMemory(helper_pid(sandbox))
    start = time.monotonic()
    with pytest.raises(DataError) as error:
        ChatTemplate(source, sandbox=sandbox).render(MESSAGES)
    seconds = time.monotonic() - start
    memory.is_done = True
    memory.join()
    assert seconds < most
    assert 0 < memory.peak < sandbox.megabytes * 1.05
    assert "\n" not in str(error.value)
    return str(error.value)


# --- what templates cannot do ---------------------------------------------------------------


@pytest.mark.parametrize("name", REACHING)
def test_a_template_cannot_reach_out(name):
    reason = error_of(REACHING[name])
    assert reason.startswith("the chat template ")
    assert "root:" not in reason and "uid=" not in reason and " at 0x" not in reason


@pytest.mark.parametrize("name", GREEDY)
def test_a_template_that_exceeds_the_limits_ends_soon(name, tight):
    reason = error_of(GREEDY[name], tight)
    assert reason.startswith("the chat template ")
    assert len(reason) < 600


@pytest.mark.parametrize("name", HARMLESS)
def test_what_only_looks_hostile_has_its_text(name):
    source, text = HARMLESS[name]
    assert ChatTemplate(source).render(MESSAGES) == text


LETTERS = "{% set a = 'a' * 1000000 %}{% set b = 'b' * 1000000 %}{% set c = 'c' * 1000000 %}"


def test_sorting_many_long_strings_ends_within_the_limits():
    """It makes a lower-case copy of each of 18,000 strings of 10^6 characters: 18 GB."""
    reason = error_of(LETTERS + "{{ ([a, b, c] * 6000)|sort|length }}", most=1.5)
    assert reason.startswith(
        (
            "the chat template failed: it needs more than 480 MB",
            "the chat template failed: it takes",
        )
    )


def test_searching_many_long_strings_ends_within_the_limits():
    """One string is compared sixty times with 40,000 others that differ at their end."""
    source = (
        "{% set a = 'a' * 1000000 ~ 'b' %}{% set c = 'a' * 1000000 ~ 'c' %}"
        "{% set l = [a] * 40000 %}" + "{% if c in l %}x{% endif %}" * 60
    )
    assert error_of(source, most=1.5) == (
        "the chat template failed: it takes more than 1 s. Use another template, or none."
    )


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


def test_a_key_may_begin_with_an_underscore():
    assert ChatTemplate("{{ x['_y'] }}").render(MESSAGES, x={"_y": 5}) == "5"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% for %}", "cannot be used: .*end of statement|cannot be used: .*expected"),
        ("{{ messages[0].content|nonsense }}", "cannot be used: No filter named 'nonsense'"),
        ("{% include 'x' %}", "failed: no loader for this environment specified"),
        ("{{ a.b.c }}", "failed: 'a' is undefined"),
        ("{{ 1 / 0 }}", "failed: division by zero"),
        ("{{ 'a' * 10**9 }}", "failed: it needs more than 480 MB of memory"),
        ("{{ 'a' * 10**7 }}", "failed: its result has more than 8[0-9]{6} bytes"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "failed: it calls itself without end"),
        ("{% for i in range(10**9) %}{% endfor %}", "failed: Range too big"),
        (ENDLESS, "failed: it takes more than 1 s"),
    ],
)
def test_the_reason_is_one_sentence(source, reason):
    with pytest.raises(DataError, match=f"the chat template {reason}"):
        ChatTemplate(source).render(MESSAGES)


@given(st.text(alphabet="{}%-+*~|'\"[]().,_ abmessages0129:=if\n", max_size=60))
def test_any_source_is_a_text_or_an_error_of_ours(source):
    with contextlib.suppress(DataError):
        ChatTemplate(source).render(MESSAGES)


# --- what goes through the pipe -------------------------------------------------------------


@given(st.text(alphabet=st.characters()), st.text(alphabet=st.characters(categories=["Cs"])))
def test_any_text_comes_back_as_it_was(text, surrogates):
    template = ChatTemplate(ECHO)
    for content in (text, surrogates, text + surrogates):
        assert template.render(talk(("user", content))) == content


def test_a_conversation_of_many_megabytes_comes_back():
    contents = [f"{n} " + "\u4e00\U0001f600" * 500 for n in range(4_000)]
    source = "{% for m in messages %}{{ m.content }}{% endfor %}"
    text = ChatTemplate(source).render(talk(*(("user", content) for content in contents)))
    assert text == "".join(contents)
    assert len(text.encode()) > 13_000_000


def test_a_conversation_beyond_the_memory_limit_is_one_error(tight):
    with pytest.raises(DataError, match="it needs more than 160 MB of memory|more than 0.3 s"):
        ChatTemplate(CHATML, sandbox=tight).render(talk(("user", "a" * 150_000_000)))
    assert ChatTemplate(ECHO, sandbox=tight).render(MESSAGES) == "hello"


# --- the life of the helper -----------------------------------------------------------------


def test_one_helper_renders_all_templates():
    first = helper_pid()
    assert [ChatTemplate(ECHO).render(talk(("user", str(n)))) for n in range(3)] == list("012")
    assert helper_pid() == first


@pytest.mark.parametrize("source", ["{{ 'a' * 10**9 }}", ENDLESS, "{{ 'a' * 10**7 }}"])
def test_after_a_limit_another_helper_takes_over(source, tight):
    first = helper_pid(tight)
    with pytest.raises(DataError):
        ChatTemplate(source, sandbox=tight).render(MESSAGES)
    wait_until(lambda: not Path(f"/proc/{first}").exists())  # not even a zombie
    assert ChatTemplate(ECHO, sandbox=tight).render(MESSAGES) == "hello"
    assert helper_pid(tight) != first


def test_a_helper_that_was_killed_between_two_renders_is_replaced():
    first = helper_pid()
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not is_running(first))
    assert ChatTemplate(ECHO).render(MESSAGES) == "hello"
    assert helper_pid() != first


def test_a_helper_that_is_killed_while_it_renders_is_one_error():
    killer = threading.Timer(0.2, os.kill, (helper_pid(), signal.SIGKILL))
    killer.start()
    with pytest.raises(DataError, match="failed: the helper process was ended by SIGKILL"):
        ChatTemplate(ENDLESS).render(MESSAGES)
    killer.join()
    assert ChatTemplate(ECHO).render(MESSAGES) == "hello"


@pytest.mark.parametrize("size", [10, 5_000_000])
def test_a_helper_that_does_not_read_is_killed(size, tight):
    """5 MB do not fit into the pipe, so that writing waits too."""
    template = ChatTemplate(ECHO, sandbox=tight)
    os.kill(helper_pid(tight), signal.SIGSTOP)
    start = time.monotonic()
    with pytest.raises(DataError, match="it takes more than 0.3 s"):
        template.render(talk(("user", "a" * size)))
    assert time.monotonic() - start < 2.0
    assert template.render(MESSAGES) == "hello"


def test_threads_take_turns():
    texts: dict[int, list[str]] = {}

    def render(number: int) -> None:
        template = ChatTemplate(ECHO + str(number))
        texts[number] = [template.render(talk(("user", f"{n} "))) for n in range(25)]

    threads = [threading.Thread(target=render, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == {number: [f"{n} {number}" for n in range(25)] for number in range(8)}


def test_an_interrupt_while_rendering_leaves_no_reply_for_the_next_request():
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    first = helper_pid()
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            ChatTemplate(ENDLESS).render(MESSAGES)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not is_running(first)
    assert ChatTemplate(ECHO).render(MESSAGES) == "hello"


def test_an_interrupt_while_the_helper_starts_leaves_none(monkeypatch):
    def interrupt(sandbox: TemplateSandbox, limit: int) -> dict[str, str]:
        raise KeyboardInterrupt

    sandbox = TemplateSandbox()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(TemplateSandbox, "receive", interrupt)
        ChatTemplate(ECHO, sandbox=sandbox)
    assert sandbox.process is None
    assert ChatTemplate(ECHO, sandbox=sandbox).render(MESSAGES) == "hello"
    sandbox.stop()


def test_a_helper_that_never_is_ready_is_one_sentence(monkeypatch, tmp_path):
    program = tmp_path / "sleeper.py"
    program.write_text("import time; time.sleep(60)", encoding="utf-8")
    monkeypatch.setattr(template_sandbox, "RENDERER", program)
    monkeypatch.setattr(template_sandbox, "START_SECONDS", 0.3)
    with pytest.raises(WeftError, match="which did not start: it takes more than 0.3 s"):
        ChatTemplate(ECHO, sandbox=TemplateSandbox())


def run_script(script: str) -> subprocess.CompletedProcess[str]:
    """A program of its own that renders; warnings are errors, its stderr must stay empty."""
    head = "import json, os, signal, sys, threading, time\nfrom weft.text import template_sandbox\n"
    head += "render = lambda text: template_sandbox.SANDBOX.render('{{ x }}', {'x': text})[1]\n"
    head += "pid = lambda: template_sandbox.SANDBOX.process.pid\n"
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", head + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        start_new_session=True,
        check=False,
    )
    assert result.stderr == "", result.stderr
    return result


def test_a_forked_process_has_a_helper_of_its_own():
    result = run_script("""
        assert render("parent") == "parent"
        first = pid()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            assert render("child") == "child"
            os.write(write, json.dumps([pid(), os.getppid()]).encode())
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert render("again") == "again" and pid() == first
        print(json.dumps([first, json.loads(os.read(read, 99))[0]]))
    """)
    assert result.returncode == 0
    parents, childs = json.loads(result.stdout)
    assert parents != childs
    wait_until(lambda: not is_running(parents) and not is_running(childs))


def test_a_process_forked_while_a_thread_renders_does_not_wait_for_it():
    result = run_script("""
        render("x")
        slow = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"
        thread = threading.Thread(target=template_sandbox.SANDBOX.render, args=(slow, {}))
        thread.start()
        time.sleep(0.1)
        child = os.fork()
        if child == 0:
            os._exit(0 if render("child") == "child" else 1)
        print(os.waitpid(child, 0)[1])
        thread.join()
    """)
    assert (result.returncode, result.stdout) == (0, "0\n")


@pytest.mark.parametrize(
    "end", ["", "sys.exit(0)", "os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"]
)
def test_the_helper_ends_with_its_parent(end):
    result = run_script(f"render('x'); print(pid(), flush=True)\n{end}")
    assert result.returncode == (-signal.SIGKILL if "KILL" in end else 0)
    wait_until(lambda: not is_running(int(result.stdout)))


def test_a_helper_that_renders_without_end_ends_after_its_parent_was_killed():
    result = run_script("""
        render("x")
        print(pid(), flush=True)
        slow = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()
        template_sandbox.SANDBOX.render(slow, {})
    """)
    assert result.returncode == -signal.SIGKILL
    wait_until(lambda: not is_running(int(result.stdout)), seconds=10)


def test_ctrl_c_in_a_terminal_does_not_reach_the_helper():
    """A terminal sends SIGINT to every process of the foreground process group."""
    result = run_script("""
        render("x")
        first = pid()
        try:
            os.killpg(os.getpgid(0), signal.SIGINT)
            time.sleep(5)
        except KeyboardInterrupt:
            assert render("y") == "y"
            print(pid() == first)
    """)
    assert (result.returncode, result.stdout) == (0, "True\n")


def test_the_helper_imports_jinja2_and_nothing_of_weft():
    folder = str(Path(__import__("jinja2").__file__).parents[1])
    command = [sys.executable, "-I", "-S", "-X", "importtime", str(RENDERER), "480", "1", folder]
    result = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    )
    modules = [line.split("|")[-1].strip() for line in result.stderr.splitlines()]
    assert "jinja2" in modules
    assert {name.partition(".")[0] for name in modules} & {"weft", "torch", "tokenizers"} == set()


def test_the_helper_inherits_no_secrets_and_has_its_limits(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("TZ", "UTC")
    sandbox = TemplateSandbox()
    process = Path(f"/proc/{helper_pid(sandbox)}")
    names = [item.partition(b"=")[0] for item in (process / "environ").read_bytes().split(b"\0")]
    limits = (process / "limits").read_text(encoding="utf-8")
    sandbox.stop()
    assert b"TZ" in names and b"HF_TOKEN" not in names
    assert re.search(rf"Max address space +{480 << 20} +{480 << 20} ", limits)
    assert re.search("Max processes +0 ", limits) and re.search("Max file size +0 ", limits)


@pytest.mark.parametrize("missing", ["program", "interpreter"])
def test_a_helper_that_cannot_start_is_one_sentence(missing, monkeypatch, tmp_path):
    if missing == "program":
        monkeypatch.setattr(template_sandbox, "RENDERER", tmp_path / "none.py")
    else:
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    match = "need a helper process, which did not start: .*exit code 2|No such file"
    with pytest.raises(WeftError, match=match) as error:
        ChatTemplate(ECHO, sandbox=TemplateSandbox())
    assert "can import jinja2." in str(error.value) and "\n" not in str(error.value)
