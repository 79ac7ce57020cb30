"""/v1/completions: the engine's own tokens, whole and streamed, in OpenAI's shapes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serve.server import RunningServer, make_service, running


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running(make_service()) as one:
        yield one


BODY: dict[str, Any] = {"model": "decoder", "prompt": "the cat", "max_tokens": 9, "seed": 4}


def events(response: Any) -> list[Any]:
    """The data of server-sent events."""
    parts = [part for part in response.text.split("\n\n") if part]
    assert all(part.startswith("data: ") for part in parts)
    return [part if part == "data: [DONE]" else json.loads(part[6:]) for part in parts]


def test_a_text_is_the_engines_own(server):
    answer = server.post("/v1/completions", BODY)
    loaded = server.service.models.get("decoder").loaded
    expected = loaded.generate("the cat", 9, seed=4)
    value = answer.json()
    assert answer.status_code == 200, value
    assert value["choices"] == [
        {"text": expected, "index": 0, "logprobs": None, "finish_reason": "length"}
    ]
    assert value["object"] == "text_completion" and value["model"] == "decoder"
    assert value["usage"]["prompt_tokens"] == len(loaded.prompt_ids("the cat"))
    assert value["usage"]["completion_tokens"] == 9
    server.wait_idle()


def test_a_stream_joins_to_the_whole_text(server):
    whole = server.post("/v1/completions", {**BODY, "n": 2, "logprobs": 2}).json()
    stream = {"stream": True, "stream_options": {"include_usage": True}, "n": 2, "logprobs": 2}
    answer = server.post("/v1/completions", {**BODY, **stream})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-cache"
    *chunks, last, done = events(answer)
    assert done == "data: [DONE]" and last["choices"] == []
    assert last["usage"] | {"prompt_tokens_details": 0} == whole["usage"] | {
        "prompt_tokens_details": 0
    }
    assert all(chunk["usage"] is None and chunk["id"] == last["id"] for chunk in chunks)
    for choice in whole["choices"]:
        parts = [
            one["choices"][0] for one in chunks if one["choices"][0]["index"] == choice["index"]
        ]
        assert "".join(part["text"] for part in parts) == choice["text"]
        tokens = [token for part in parts for token in part["logprobs"]["tokens"]]
        assert tokens == choice["logprobs"]["tokens"]
        assert parts[-1]["finish_reason"] == choice["finish_reason"]
    server.wait_idle()


def test_several_prompts_and_token_ids(server):
    loaded = server.service.models.get("decoder").loaded
    ids = loaded.prompt_ids("the cat")
    one = server.post("/v1/completions", BODY).json()["choices"][0]["text"]
    assert (
        server.post("/v1/completions", {**BODY, "prompt": ids}).json()["choices"][0]["text"] == one
    )
    many = server.post("/v1/completions", {**BODY, "prompt": ["the cat", "a dog"], "n": 2}).json()
    assert [choice["index"] for choice in many["choices"]] == [0, 1, 2, 3]
    assert many["choices"][0]["text"] == one


@pytest.mark.parametrize(
    "change, status, message",
    [
        ({"model": "decodr"}, 404, "model 'decodr' is not served here. Did you mean 'decoder'"),
        ({"temperatur": 1}, 400, "'temperatur' is not a field of this request. Did you mean 'temp"),
        ({"temperature": -1}, 400, "temperature"),
        ({"suffix": "x"}, 400, "suffix is not supported"),
        ({"prompt": "the cat " * 60}, 400, "the model's context length is 40"),
        ({"prompt": [[99999]]}, 400, "99999"),
        ({"max_tokens": "many"}, 400, "max_tokens"),
        ({"logit_bias": {"x": 1}}, 400, "logit_bias has the key 'x'"),
    ],
)
def test_a_wrong_request_is_one_sentence(server, change, status, message):
    answer = server.post("/v1/completions", {**BODY, **change})
    error = answer.json()["error"]
    assert answer.status_code == status and message in error["message"], error
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] is None or isinstance(error["code"], str)


def test_max_tokens_is_cut_to_the_room(server):
    value = server.post("/v1/completions", {**BODY, "max_tokens": 32000, "ignore_eos": True}).json()
    assert value["usage"]["total_tokens"] == 40
    assert value["choices"][0]["finish_reason"] == "length"


def test_unknown_routes_methods_and_bodies(server):
    assert server.get("/v1/nothing").json()["error"]["type"] == "not_found_error"
    assert server.get("/api/nothing").json() == {
        "error": "there is no such route. GET /docs lists the routes of this server."
    }
    assert server.get("/v1/messages/nothing").json()["type"] == "error"
    assert isinstance(server.post("/translate_file", {}).json()["error"], str)
    assert server.get("/v1/completions").status_code == 405
    answer = server.client.post(
        "/v1/completions", content=b"{", headers={"content-type": "application/json"}
    )
    assert answer.status_code == 400
    answer = server.client.post("/v1/completions", content=b"{}")
    assert answer.status_code == 415


def texts(server: RunningServer, **changes: Any) -> list[str]:
    answer = server.post("/v1/completions", {**BODY, **changes})
    assert answer.status_code == 200, answer.text
    return [choice["text"] for choice in answer.json()["choices"]]


def test_the_best_of_several_samples_have_the_highest_mean_logprob(server):
    loaded = server.service.models.get("decoder").loaded
    (samples,) = loaded.completions(["the cat"], 9, n=5, seed=4, logprobs=0)
    ranked = sorted(samples, key=lambda one: -one.score(1.0))
    assert texts(server, best_of=5, n=2) == [one.text for one in ranked[:2]]
    answer = server.post("/v1/completions", {**BODY, "best_of": 5, "stream": True})
    assert answer.status_code == 400 and "best_of cannot be streamed" in answer.text
    answer = server.post("/v1/completions", {**BODY, "best_of": 2, "n": 3})
    assert "best_of is 2 but n is 3" in answer.text


def test_a_beam_search_gives_its_best_hypotheses(server):
    both = texts(server, use_beam_search=True, best_of=4, n=2)
    assert len(both) == 2 and texts(server, use_beam_search=True, best_of=4)[0] == both[0]
    server.wait_idle()


def test_stops_ends_and_echo(server):
    (plain,) = texts(server, temperature=0, ignore_eos=True)
    stop = plain[3:5]
    (cut,) = texts(server, temperature=0, ignore_eos=True, stop=stop)
    assert cut == plain[: plain.index(stop)]
    kept = texts(server, temperature=0, stop=[stop], include_stop_str_in_output=True)
    assert kept == [cut + stop]
    (echoed,) = texts(server, temperature=0, ignore_eos=True, echo=True)
    assert echoed == "the cat" + plain
    streamed = server.post(
        "/v1/completions", {**BODY, "temperature": 0, "echo": True, "stream": True}
    )
    parts = [one["choices"][0]["text"] for one in events(streamed)[:-1]]
    assert "".join(parts).startswith("the cat")


def test_end_tokens_wait_for_min_tokens(server):
    loaded = server.service.models.get("decoder").loaded
    first = loaded.tokenizer.encode("dog", add_special=False)[0]
    body = {**BODY, "stop_token_ids": [first], "logit_bias": {str(first): 100}, "max_tokens": 9}
    usage = server.post("/v1/completions", {**body}).json()["usage"]
    assert usage["completion_tokens"] == 1
    usage = server.post("/v1/completions", {**body, "min_tokens": 5}).json()["usage"]
    assert usage["completion_tokens"] == 6


def test_a_prompt_that_is_too_long_is_named(server):
    answer = server.post("/v1/completions", {"model": "decoder", "prompt": [5] * 60})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt"
    assert answer.json()["error"]["code"] == "context_length_exceeded"


SCHEMA = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}
SCHEMA |= {"additionalProperties": False}
JSON_START = r'\s*{\s*"a"(\s*:(\s*1(\s*})?)?)?\s*'
"""The model writes many line breaks, and its texts are short."""


@pytest.mark.parametrize(
    ("constraint", "pattern"),
    [
        ({"json": SCHEMA}, JSON_START),
        ({"json": json.dumps(SCHEMA)}, JSON_START),
        ({"regex": "(ab){2}"}, "abab"),
        ({"choice": ["cat", "dog"]}, "cat|dog"),
        ({"grammar": 'root ::= "yes" | "no"'}, "yes|no"),
        ({"grammar": 'start: "yes" | "no"'}, "yes|no"),
        ({"json_object": True}, r"\s*{.*"),
        ({}, ".*"),
    ],
)
def test_the_text_matches_its_constraint(server, constraint, pattern):
    value = texts(server, structured_outputs=constraint, max_tokens=30, seed=5, stop=None)
    assert re.fullmatch(pattern, value[0], re.DOTALL), value


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        ({"json": "{"}, "structured_outputs.json is not valid JSON"),
        ({"json": "[" * 200 + "]" * 200}, "structured_outputs.json has more than 100 objects"),
        ({"json": {}, "regex": "a"}, "structured_outputs has json and regex: a text has one"),
        ({"regex": "a", "grammar": "b"}, "structured_outputs has regex and grammar"),
        ({"regex": "("}, "the grammar cannot be compiled"),
    ],
)
def test_a_wrong_constraint_is_named_as_it_was_sent(server, constraint, message):
    answer = server.post("/v1/completions", {**BODY, "structured_outputs": constraint})
    assert answer.status_code == 400 and message in answer.json()["error"]["message"], answer.text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0.9),
        ("top_p", 0.5),
        ("top_k", 3),
        ("min_p", 0.1),
        ("presence_penalty", 1),
        ("frequency_penalty", 1),
        ("repetition_penalty", 2.0),
        ("logit_bias", {"9": 100}),
        ("stop", "a"),
        ("min_tokens", 2),
        ("stop_token_ids", [9]),
        ("include_stop_str_in_output", True),
        ("skip_special_tokens", False),
        ("structured_outputs", {"regex": "[ab]+"}),
        ("logprobs", 0),
        ("logprobs", 1),
    ],
)
def test_what_a_beam_search_cannot_honor_is_refused(server, name, value):
    body = {"model": "decoder", "prompt": "the cat", "max_tokens": 4, "use_beam_search": True}
    response = server.post("/v1/completions", {**body, name: value})
    error = response.json()["error"]
    assert response.status_code == 400 and error["param"] == name, response.text
    assert f"{name} cannot be used with use_beam_search" in error["message"]
    neutral = {"temperature": 0, "top_p": 1, "top_k": -1, "repetition_penalty": 1.0, "stop": []}
    plain = server.post("/v1/completions", body).json()["choices"]
    assert server.post("/v1/completions", body | neutral).json()["choices"] == plain
