"""Reasoning of a chat: tokens that count as reasoning, beam searches, and answers without it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.serve.scripted import NAME, THINK_TEMPLATE, script_ids, scripted_service
from tests.serve.server import RunningServer, running
from weft.engine.beam_search import Hypothesis
from weft.engine.request import RequestOutput
from weft.serve.generation import ChoiceEvent, Generation

SCRIPT = "<think>\nHm,  \n\n so.\n</think>\n\nYes \U0001f642."
BODY: dict[str, Any] = {"model": NAME, "messages": [{"role": "user", "content": "Is it?"}]}
PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running(scripted_service(SCRIPT, THINK_TEMPLATE)) as one:
        yield one
        one.wait_idle()


def choices(server: RunningServer, **changes: Any) -> list[Any]:
    """The choices of an answer, or of the chunks of a stream."""
    answer = server.post(PATH, {**BODY, **changes})
    assert answer.status_code == 200, answer.text
    if "stream" not in changes:
        return answer.json()["choices"]
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if "{" in line]
    return [one for line in lines for one in json.loads(line)["choices"]]


def test_every_token_between_the_tags_counts_as_reasoning(server):
    """Also white space, which the parser holds back."""
    usage = server.post(PATH, BODY).json()["usage"]
    inside = SCRIPT.partition("</think>")[0].removeprefix("<think>")
    # the token that completes the start tag, and all bytes of the end tag
    expected = 1 + len(inside.encode()) + len("</think>")
    assert usage["completion_tokens_details"]["reasoning_tokens"] == expected
    assert usage["completion_tokens"] == len(SCRIPT.encode()) + 1


def test_the_reasoning_of_a_beam_search_is_not_in_its_text(server, monkeypatch):
    served = server.service.models.get(NAME)
    events_of, ids = Generation.events_of, script_ids(served.tokenizer, SCRIPT)

    def with_script(self: Generation, output: RequestOutput) -> list[ChoiceEvent]:
        hypotheses = [Hypothesis(ids, -1.0, -2.0) for _ in output.hypotheses]
        return events_of(self, replace(output, hypotheses=hypotheses))

    monkeypatch.setattr(Generation, "events_of", with_script)
    for one in choices(server, use_beam_search=True, n=2, max_tokens=5):
        assert one["message"]["content"] == "Yes \U0001f642."
        assert one["message"]["reasoning"] == "Hm,  \n\n so."
    parts = choices(server, use_beam_search=True, max_tokens=5, stream=True)
    assert "".join(one["delta"].get("content", "") for one in parts) == "Yes \U0001f642."


@pytest.mark.parametrize("stream", [{}, {"stream": True}])
def test_without_reasoning_its_tokens_have_no_logprobs(server, stream):
    entries = []
    for one in choices(server, include_reasoning=False, logprobs=True, **stream):
        assert "reasoning" not in json.dumps(one)
        entries += one["logprobs"]["content"] if one["logprobs"] else []
    shown = bytes(byte for entry in entries for byte in entry["bytes"]).decode()
    assert shown == "Yes \U0001f642." or shown == "\n\nYes \U0001f642."
    with_it = choices(server, logprobs=True)[0]["logprobs"]["content"]
    assert len(with_it) == len(SCRIPT.encode())
