"""docs/serve.md: its tables are those of the code, and its examples run.

The curl commands are sent to a real server whose models are tiny and have the names of the page.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import pytest

from tests.engine.tiny import tiny
from tests.serve.scripted import PLAIN_TEMPLATE
from tests.serve.server import RunningServer, make_service, running
from weft.cli import serve_page
from weft.cli.serve_page import filled, write_or_check_tables
from weft.engine.config import EngineConfig
from weft.serve.bodies import Body, LooseBody, NoEffect, rejected

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "serve.md"
TEXT = PAGE.read_text(encoding="utf-8")
URL = "http://127.0.0.1:8000"
EXAMPLES = re.findall(r"```sh\n(.*?)```", TEXT, flags=re.DOTALL)
WITH_EXAMPLE = (
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/api/chat",
    "/api/generate",
    "/translate",
    "/v1/rerank",
    "/v1/score",
    "/tokenize",
    "/detokenize",
    "/v1/attention",
)
"""Routes that the page shows with curl; a new route is only in the generated table."""
FIRST_SCREEN = re.findall(r"^curl .*$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)


def test_the_tables_are_those_of_the_code():
    assert filled(TEXT) == TEXT, "docs/serve.md is out of date: run `make docs` and commit it"


def test_check_fails_on_another_page_and_writing_repairs_it(tmp_path, capsys):
    path = tmp_path / "serve.md"
    path.write_text(TEXT.replace("| `temperature` |", "| `temprature` |"))
    assert write_or_check_tables(["--check", str(path)]) == 1
    assert "serve.md is out of date: run `make docs`" in capsys.readouterr().err
    assert write_or_check_tables([str(path)]) == 0
    assert path.read_text() == TEXT
    assert write_or_check_tables(["--check", str(path)]) == 0


class InnerBody(LooseBody):
    """A body inside of another."""

    depth: int | None = None
    """How deep."""
    plain: int | None = None


class OuterBody(Body):
    """A body with a field of each class."""

    name: str
    """Its | name."""
    inner: InnerBody | None = None
    """More fields."""
    ignored: NoEffect[InnerBody] = None
    """Accepted."""
    refused: Annotated[Any, rejected("it is not for us. Leave it out.")] = None


def test_rows_have_the_class_of_a_field_and_the_fields_inside():
    rows = serve_page.own_rows(OuterBody)
    assert rows[:3] == [
        ["`name`", "honored, required", "Its | name."],
        ["`inner`", "honored", "More fields."],
        ["`inner.depth`", "honored", "How deep."],
    ]
    assert rows[3] == ["`ignored`", "no effect", "Accepted."]
    assert rows[4:] == [["`refused`", "rejected", "It is not for us. Leave it out."]]
    assert serve_page.cell("a | b\n c") == "a \\| b c"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    chat = replace(tiny("decoder", max_len=2000), chat_template=PLAIN_TEMPLATE)
    translation = replace(tiny("encoder-decoder", max_len=100), languages=("en", "de"))
    models = {
        "smollm2": chat,
        "minilm": tiny("encoder", max_len=100),
        "demo": tiny("encoder-decoder", max_len=100),
        "en-de": translation,
    }
    with running(make_service(models, engine=EngineConfig(page_size=4, cache_gib=0.1))) as one:
        yield one


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize(
    "example", EXAMPLES + FIRST_SCREEN, ids=lambda text: text.split()[1].removeprefix(URL)
)
def test_an_example_is_answered(server, example):
    script = f'set -e; curl() {{ command curl -sS --fail-with-body "$@"; echo; }}\n{example}'
    done = subprocess.run(
        ["bash", "-c", script.replace(URL, server.url)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    answers = [line for line in done.stdout.splitlines() if line.strip()]
    assert len(answers) >= example.count("curl ") - example.count("$(curl")
    assert not any('"error":{' in line or '"error":"' in line for line in answers)
    server.wait_idle()


@pytest.mark.parametrize("path", WITH_EXAMPLE)
def test_a_route_of_the_page_has_an_example(path):
    assert f"{URL}{path} " in "".join(EXAMPLES)


@pytest.mark.parametrize("example", EXAMPLES)
def test_what_is_sent_is_json(example):
    words = shlex.split(example.replace("$(", "").replace(")", ""))
    for place, word in enumerate(words):
        if word == "-d" and "$id" not in words[place + 1]:
            json.loads(words[place + 1])
