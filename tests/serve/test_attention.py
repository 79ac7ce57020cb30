"""/v1/attention: weights of the Python API, for recent responses of the same API key."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.serve.scripted import scripted_service
from tests.serve.server import RunningServer, make_service, running
from weft.serve.attention import AttentionResult
from weft.serve.recent_responses import RecentResponses

BODY: dict[str, Any] = {"model": "decoder", "prompt": "the cat", "max_tokens": 9, "seed": 4}
MESSAGES = [{"role": "user", "content": "Is it?"}]
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "Is it?"},
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 9},
    "/v1/responses": {"input": "Is it?"},
}
OLLAMA = {"prompt": "Is it?", "messages": MESSAGES}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running(make_service()) as one:
        yield one


@pytest.fixture(scope="module")
def chats() -> Iterator[RunningServer]:
    with running(scripted_service("It is.")) as one:
        yield one


def attention(server: RunningServer, **body: Any) -> Any:
    answer = server.post("/v1/attention", body)
    assert answer.status_code == 200, answer.json()
    AttentionResult.model_validate(answer.json())
    return answer.json()


def expected(server: RunningServer, name: str, index: int, position: int) -> Any:
    recent = server.service.recent.by_key[""][name]
    request_id, sample = recent.choice(index)
    client = recent.served.loaded.client
    return client.call(lambda engine: engine.attention_rows(request_id, position, sample))


def test_weights_are_those_of_the_engine(server):
    body = {**BODY, "prompt": ["the cat", "a dog"], "n": 2, "ignore_eos": True}
    answer = server.post("/v1/completions", body).json()
    for index in range(4):
        value = attention(server, id=answer["id"], index=index, position=8)
        rows = expected(server, answer["id"], index, 8)
        assert [one["id"] for one in value["tokens"]] == rows.tokens
        assert len(value["heads"]) == rows.weights_LHS.shape[0] * rows.weights_LHS.shape[1]
        for head in value["heads"]:
            weights = np.array(head["weights"], np.float32)
            assert np.array_equal(weights, rows.weights_LHS[head["layer"], head["head"]].numpy())
            assert weights.sum() == pytest.approx(1, abs=1e-5)
            assert head["source_weights"] is None
        assert value["source_tokens"] is None and value["model"] == "decoder"
    server.wait_idle()


def test_the_best_of_several_samples_has_its_own_tokens(server):
    prompts = ["the cat", "a dog ate"]
    body = {**BODY, "prompt": prompts, "best_of": 3, "n": 2, "temperature": 2, "logprobs": 0}
    answer = server.post("/v1/completions", body).json()
    for choice in answer["choices"]:
        prompt = prompts[choice["index"] // 2]
        recent = server.service.recent.by_key[""][answer["id"]]
        place, sample = recent.choice(choice["index"])
        tokens = recent.served.engine.engine.finished.samples(place)[sample]
        ids = recent.served.builder.prompt_ids(prompt)
        assert tokens[: len(ids)] == ids
        generated = recent.served.tokenizer.target.token_bytes(tokens[len(ids) :])
        assert [*map(list, generated)] == choice["logprobs"]["bytes"][: len(generated)]
    refused = server.post("/v1/attention", {"id": answer["id"], "index": 4, "position": 1})
    assert "index is 4, but the response has 4 choices" in refused.json()["error"]["message"]


def test_one_head_of_one_layer(server):
    name = server.post("/v1/completions", BODY).json()["id"]
    value = attention(server, id=name, position=3, layer=1, head=1)
    (head,) = value["heads"]
    assert (head["layer"], head["head"]) == (1, 1)
    row = expected(server, name, 0, 3).weights_LHS[1, 1].numpy()
    assert np.array_equal(np.array(head["weights"], np.float32), row)
    loaded = server.service.models.get("decoder").loaded
    texts = "".join(token["text"] for token in value["tokens"])
    assert loaded.tokenizer.decode(loaded.prompt_ids("the cat")[:4], False).strip() in texts


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [*ROUTES, "/api/chat", "/api/generate"])
def test_responses_of_all_protocols_are_known(chats, path, stream):
    answer = chats.post(path, {"model": "scripted", **ROUTES.get(path, OLLAMA), "stream": stream})
    assert answer.status_code == 200, answer.text
    name = answer.headers["x-request-id"]
    if path in ROUTES:
        name = re.search(r'"id":"((?:cmpl|chatcmpl|msg|resp)[-_]\w+)"', answer.text)[1]
    assert len(attention(chats, id=name, position=2)["tokens"]) == 3


def test_a_streamed_response_is_known_by_its_id(server):
    answer = server.post("/v1/completions", {**BODY, "stream": True})
    name = answer.text.partition('"id":"')[2].partition('"')[0]
    assert len(attention(server, id=name, position=2)["tokens"]) == 3


@pytest.mark.parametrize(
    "change, status, message",
    [
        ({"id": "cmpl-x"}, 404, "there is no response 'cmpl-x' of this API key in the cache"),
        ({"position": 400}, 400, "position is 400, but this choice has"),
        ({"position": -1}, 400, "position"),
        ({"layer": 2}, 400, "layer is 2, but the model has 2: use 0 to 1"),
        ({"head": 99}, 400, "head is 99, but a layer has"),
        ({"index": 1}, 400, "index is 1, but the response has 1 choices"),
        ({"positon": 1}, 400, "Did you mean 'position'?"),
    ],
)
def test_a_wrong_request_is_one_sentence(server, change, status, message):
    name = server.post("/v1/completions", BODY).json()["id"]
    answer = server.post("/v1/attention", {"id": name, "position": 1, **change})
    error = answer.json()["error"]
    assert answer.status_code == status and message in error["message"], error
    assert set(error) == {"message", "type", "param", "code"}


def test_other_keys_and_expired_responses_are_404():
    with running(make_service(keys={"ann": "key-ann", "bob": "key-bob"})) as server:
        server.service.recent.limit = 2
        ann, bob = ({"authorization": f"Bearer key-{name}"} for name in ("ann", "bob"))
        names = [server.post("/v1/completions", BODY, headers=ann).json()["id"] for _ in range(3)]
        found = [
            server.post("/v1/attention", {"id": name, "position": 1}, headers=key).status_code
            for key in (ann, bob)
            for name in names
        ]
        assert found == [404, 200, 200, 404, 404, 404]


def test_the_requests_of_a_key_do_not_displace_those_of_another():
    with running(make_service(keys={"ann": "key-ann", "bob": "key-bob"})) as server:
        server.service.recent.limit = 2
        server.service.models.get("decoder").engine.engine.finished.limit = 2
        ann, bob = ({"authorization": f"Bearer key-{name}"} for name in ("ann", "bob"))
        name = server.post("/v1/completions", BODY, headers=ann).json()["id"]
        for _ in range(5):
            server.post("/v1/completions", BODY, headers=bob)
        answer = server.post("/v1/attention", {"id": name, "position": 1}, headers=ann)
        assert answer.status_code == 200, answer.text


def test_evicted_keys_are_404():
    with running(make_service()) as server:
        name = server.post("/v1/completions", {**BODY, "ignore_eos": True}).json()["id"]
        served = server.service.models.get("decoder")
        served.loaded.client.call(
            lambda engine: engine.kv_cache.evict(engine.kv_cache.pool.num_usable)
        )
        answer = server.post("/v1/attention", {"id": name, "position": 8})
        assert answer.status_code == 404
        assert "its keys were evicted" in answer.json()["error"]["message"]


def test_other_addresses_need_look():
    with running(make_service()) as server:
        name = server.post("/v1/completions", BODY).json()["id"]
        service, body = server.service, {"id": name, "position": 1}
        service.config = service.config.with_changes({"host": "0.0.0.0"})
        answer = server.post("/v1/attention", body)
        assert answer.status_code == 403
        assert "Start the server with --look" in answer.json()["error"]["message"]
        service.config = service.config.with_changes({"look": True})
        assert server.post("/v1/attention", body).status_code == 200


def test_a_running_request_can_be_asked_about(server):
    body = {**BODY, "max_tokens": 30, "ignore_eos": True, "stream": True}
    with server.client.stream("POST", "/v1/completions", json=body) as stream:
        lines = stream.iter_lines()
        name = next(lines).partition('"id":"')[2].partition('"')[0]
        time.sleep(0.01)
        assert len(attention(server, id=name, position=1)["tokens"]) == 2
    server.wait_idle()


def test_the_oldest_responses_are_forgotten():
    recent, generation = RecentResponses(3), type("", (), {})()
    generation.requests, generation.stream = [], type("", (), {"ids": []})()
    caller = replace(make_service().keys.caller({}), name="ann")
    for number in range(5):
        recent.remember(f"r{number}", caller, None, generation)
    assert [*recent.by_key["ann"]] == ["r2", "r3", "r4"]
    assert recent.find("r4", caller) and recent.find("r1", caller) is None
