"""Log-probabilities of prompts are the engine's, in the forms of OpenAI's echo and vLLM's field."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engine.tiny import tiny
from tests.serve.scripted import PLAIN_TEMPLATE
from tests.serve.server import RunningServer, make_service, running
from weft.core.forward_batch import ForwardBatch
from weft.engine.detokenizer import special_ids
from weft.engine.loaded_model import LoadedModel
from weft.models.transformer import Decoder

PATH = "/v1/completions"
BODY: dict[str, Any] = {"model": "chat", "prompt": "the cat", "max_tokens": 5, "seed": 4}
GREEDY = {**BODY, "temperature": 0, "ignore_eos": True}
LISTS = {"tokens", "token_logprobs", "top_logprobs", "text_offset", "bytes"}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    chat = replace(tiny("decoder", max_len=2000), chat_template=PLAIN_TEMPLATE)
    with running(make_service({"chat": chat})) as one:
        yield one
        one.wait_idle()


def choices(server: RunningServer, path: str = PATH, **body: Any) -> list[Any]:
    answer = server.post(path, body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


@torch.no_grad()
def uncached(loaded: LoadedModel, ids: Sequence[int]) -> Tensor:
    """Log-probabilities of all tokens after each of ids, from one pass without a cache."""
    assert isinstance(loaded.model, Decoder)
    return loaded.model(ForwardBatch(torch.tensor([list(ids)])))[0].log_softmax(-1)


def test_an_echoed_text_has_the_bits_with_which_it_was_generated(server):
    (first,) = choices(server, **GREEDY, logprobs=2)
    loaded = server.service.models.get("chat").loaded
    ids = loaded.prompt_ids("the cat")
    for _ in range(5):  # what the model generates, by the layers alone
        ids = [*ids, int(uncached(loaded, ids)[-1].argmax())]
    (again,) = choices(server, **{**GREEDY, "prompt": ids}, echo=True, logprobs=2)
    generated, echoed = first["logprobs"], again["logprobs"]
    assert again["text"].startswith("the cat" + first["text"])
    assert set(echoed) == LISTS and len({len(one) for one in echoed.values()}) == 1
    for name in ("tokens", "token_logprobs", "top_logprobs"):
        assert echoed[name][len(ids) - 5 : len(ids)] == generated[name], name
    assert echoed["token_logprobs"][0] is None and echoed["top_logprobs"][0] is None


@pytest.mark.parametrize("prompt", ["the cat", "a dog ate two apples \u4e16 \U0001f31e"])
def test_prompts_have_the_logprobs_of_an_uncached_pass(server, prompt):
    loaded = server.service.models.get("chat").loaded
    ids = loaded.prompt_ids(prompt)
    logp_TV = uncached(loaded, ids)
    body = {**BODY, "prompt": prompt, "max_tokens": 0, "echo": True}
    (one,) = choices(server, **body, logprobs=1, prompt_logprobs=4)
    wanted = [float(logp_TV[place, token]) for place, token in enumerate(ids[1:])]
    assert one["logprobs"]["token_logprobs"][1:] == pytest.approx(wanted, abs=1e-4)
    for place, entry in enumerate(one["prompt_logprobs"][1:]):
        best_4 = logp_TV[place].topk(4)
        top = {key: value for key, value in entry.items() if value["rank"]}
        ranked = sorted(top, key=lambda key: top[key]["rank"])
        assert [int(key) for key in ranked] == best_4.indices.tolist()
        found = [top[key]["logprob"] for key in ranked]
        assert found == pytest.approx(best_4.values.tolist(), abs=1e-4)


def test_offsets_are_places_in_the_text(server):
    prompt = "a caf\u00e9 \u4e16\u754c \U0001f31e!"
    (whole,) = choices(server, **{**BODY, "prompt": prompt}, echo=True, logprobs=0)
    lists, text = whole["logprobs"], whole["text"]
    assert text.startswith(prompt) and lists["text_offset"] == sorted(lists["text_offset"])
    pairs = list(zip(lists["text_offset"], lists["tokens"], strict=True))
    placed = [(at, token) for at, token in pairs if "\ufffd" not in token]
    special = special_ids(server.service.models.get("chat").tokenizer.target).values()
    for at, token in placed:
        assert token in special or text[at:].startswith(token) or token.startswith(" "), token
    answer = server.post(
        PATH, {**BODY, "prompt": prompt, "echo": True, "logprobs": 0, "stream": True}
    )
    parts = [json.loads(part[6:]) for part in answer.text.split("\n\n")[:-2]]
    streamed = [one["choices"][0] for one in parts]
    assert "".join(one["text"] for one in streamed) == text
    for name in LISTS:
        assert [x for one in streamed for x in one["logprobs"][name]] == lists[name], name


def test_a_prompt_alone_is_scored_without_new_tokens(server):
    prompts = ["the cat", "a dog ate two apples", [5]]
    loaded = server.service.models.get("chat").loaded
    for prompt in prompts:
        body = {**BODY, "prompt": prompt, "max_tokens": 0, "echo": True, "logprobs": 1}
        answer = server.post(PATH, body).json()
        (one,) = answer["choices"]
        count = 1 if prompt == [5] else len(loaded.prompt_ids(prompt))
        assert len(one["logprobs"]["tokens"]) == count
        assert prompt == [5] or one["text"] == prompt
        assert one["finish_reason"] == "length"
        usage = answer["usage"]
        assert usage["completion_tokens"] == 0 and usage["prompt_tokens"] == count
    (empty,) = choices(server, **{**BODY, "max_tokens": 0})
    assert empty["text"] == "" and empty["finish_reason"] == "length"
    beams = choices(server, **{**BODY, "max_tokens": 0}, use_beam_search=True, best_of=3, n=2)
    assert [one["text"] for one in beams] == ["", ""]


def test_vllms_field_has_ids_ranks_and_texts(server):
    both = choices(server, **{**BODY, "prompt": ["the cat", "a dog"]}, n=2, prompt_logprobs=3)
    loaded = server.service.models.get("chat").loaded
    for index, one in enumerate(both):
        ids = loaded.prompt_ids(["the cat", "a dog"][index // 2])
        entries = one["prompt_logprobs"]
        assert entries[0] is None and len(entries) == len(ids)
        assert both[index - index % 2]["prompt_logprobs"] == entries
        for token, entry in zip(ids[1:], entries[1:], strict=True):
            assert list(entry)[0] == str(token) and len(entry) in (3, 4)
            ranks = sorted(value["rank"] for value in entry.values() if value["rank"])
            assert ranks == [1, 2, 3]
            best = max(entry.values(), key=lambda value: value["logprob"])
            assert best["rank"] == 1 and sum(math.exp(v["logprob"]) for v in entry.values()) <= 1
            names = loaded.tokenizer.target.token_bytes([token])
            assert entry[str(token)]["decoded_token"] == names[0].decode("utf-8", "replace")
    (echoed,) = choices(server, **BODY, echo=True, logprobs=1, prompt_logprobs=3)
    assert all(len(one) <= 2 for one in echoed["logprobs"]["top_logprobs"][1:])
    assert echoed["prompt_logprobs"] == both[0]["prompt_logprobs"]


def test_chats_have_them_too(server):
    messages = [{"role": "user", "content": "the cat"}]
    body = {"model": "chat", "messages": messages, "max_tokens": 3, "prompt_logprobs": 0}
    answer = server.post("/v1/chat/completions", body).json()
    ids = server.service.models.get("chat").loaded.chat_ids(messages)
    assert [list(one or {}) for one in answer["prompt_logprobs"]] == [
        [], *([str(token)] for token in ids[1:])
    ]  # fmt: skip
    for path in (PATH, "/v1/chat/completions"):
        known = BODY if path == PATH else body
        refused = server.post(path, {**known, "prompt_logprobs": 1, "stream": True})
        assert refused.status_code == 400
        assert "prompt_logprobs cannot be streamed" in refused.json()["error"]["message"]


def test_a_failure_ends_the_request(server, monkeypatch):
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("broken")

    engine = server.service.models.get("chat").engine.engine
    monkeypatch.setattr(engine, "prepare_score", fail)
    answer = server.post(PATH, {**BODY, "echo": True, "logprobs": 1, "max_tokens": 900})
    assert answer.status_code == 500
    server.wait_idle()
