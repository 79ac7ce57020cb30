"""All protocols return the engine's own text for the same request, whole and streamed, alone and
under load, also where characters are split between tokens and bytes are no characters."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest

from tests.engine.tiny import tiny
from tests.serve.scripted import follow_script, scripted_checkpoint
from tests.serve.server import SMALL, RunningServer, make_service, running
from weft.checkpoint.weft_folder import Checkpoint
from weft.engine.loaded_model import LoadedModel
from weft.engine.request_builder import GenerationOptions
from weft.serve.ollama_fields import DEFAULTS

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
TEXTS = (
    "the cat sat",
    "\u6211\u5403\u4e86\u82f9\u679c",
    "\U0001f31e\U0001f468\u200d\U0001f469\u200d\U0001f467 e\u0301",
    "a dog \u2014 \ufffd \u0000 \U0010ffff",
    "\u0627\u0644\u0642\u0637\u0629 two apples",
)
NUM_CLIENTS = 24
PROTOCOLS = (
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/api/chat",
    "/api/generate",
)


@dataclass(frozen=True, eq=False)
class Case:
    """One request, in no protocol's terms."""

    path: str
    model: str
    prompt: str
    max_tokens: int
    sampling: Mapping[str, Any]
    stop: tuple[str, ...]

    @property
    def is_chat(self) -> bool:
        return self.path != "/v1/completions"

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": self.prompt}]

    def body(self, is_streamed: bool) -> dict[str, Any]:
        """The request in the terms of its protocol."""
        body = {"model": self.model, "stream": is_streamed, **self.limits()}
        if is_streamed and self.path.startswith("/v1/c"):
            body["stream_options"] = {"include_usage": True}
        if self.path in ("/v1/completions", "/api/generate"):
            return {**body, "prompt": self.prompt}
        if self.path == "/v1/responses":
            return {**body, "input": self.prompt, "store": False}
        return {**body, "messages": self.messages}

    def limits(self) -> dict[str, Any]:
        stop, values = list(self.stop), dict(self.sampling)
        if self.path.startswith("/api"):
            options = {"num_predict": self.max_tokens, "stop": stop, **values}
            return {"options": options, "logprobs": True}
        if self.path == "/v1/messages":
            values.pop("seed")
            return {"max_tokens": self.max_tokens, "stop_sequences": stop, **values}
        if self.path == "/v1/responses":
            include = ["message.output_text.logprobs"]
            return {"max_output_tokens": self.max_tokens, "include": include, **values}
        logprobs = 0 if self.path == "/v1/completions" else True
        return {"max_tokens": self.max_tokens, "stop": stop, "logprobs": logprobs, **values}


@dataclass(frozen=True)
class Result:
    """What a protocol or the engine itself has answered."""

    text: str
    num_prompt: int
    num_new: int
    logprobs: tuple[float, ...] | None
    """Of each token; None: the protocol does not have them."""


def random_case(rng: random.Random) -> Case:
    path, is_greedy = rng.choice(PROTOCOLS), rng.random() < 0.3
    sampling: dict[str, Any] = {
        "temperature": rng.choice([0.7, 1.0, 1.5]),
        "seed": rng.randrange(99),
    }
    if rng.random() < 0.3:
        sampling |= {"top_k": rng.choice([2, 20]), "top_p": 0.9}
    if is_greedy or path == "/v1/messages":  # it has no seed
        sampling |= {"temperature": 0}
    if path.startswith("/v1/c") and rng.random() < 0.3:
        sampling |= {"min_p": 0.05, "repetition_penalty": 1.3, "presence_penalty": 0.5}
    stop = tuple(rng.sample(["a", " ", "\u82f9"], 2)) if rng.random() < 0.3 else ()
    prompt = " ".join(rng.choices(TEXTS, k=rng.randrange(1, 3)))
    model = rng.choice(["text", "bytes", "script"])
    has_stop = path != "/v1/responses"
    return Case(path, model, prompt, rng.randrange(1, 25), sampling, stop if has_stop else ())


def checkpoints() -> dict[str, Checkpoint]:
    """A model with byte-fallback tokens, and two whose tokens are bytes, of which one says texts in
    which characters have several."""
    text = replace(tiny("decoder", max_len=600), chat_template=TEMPLATE)
    return {name: scripted_checkpoint(TEMPLATE, (), 600) for name in ("bytes", "script")} | {
        "text": text
    }


def script(prompt: str) -> str:
    """What the model `script` says."""
    return TEXTS[len(prompt) % len(TEXTS)] * 2


def follow(loaded: LoadedModel) -> None:
    follow_script(loaded.client.async_engine.engine, loaded.tokenizer, script)


def alone(models: Mapping[str, LoadedModel], case: Case) -> Result:
    """What the engine says with nothing else running."""
    loaded = models[case.model]
    ids = loaded.chat_ids(case.messages) if case.is_chat else loaded.prompt_ids(case.prompt)
    defaults = DEFAULTS if case.path.startswith("/api/") else {}
    keywords = {**defaults, **case.sampling, "stop": case.stop, "logprobs": 0}
    outputs = list(loaded.stream(ids, GenerationOptions.of(case.max_tokens, **keywords)))
    finish = outputs[-1].finish
    tokens = [token for output in outputs for token in output.tokens]
    entries = [entry.logprob for output in outputs for entry in output.logprobs]
    is_end = finish is not None and finish.reason == "end"
    text = "".join(output.text for output in outputs)
    return Result(text, len(ids), len(tokens) + is_end, tuple(entries))


async def ask(client: httpx.AsyncClient, case: Case, is_streamed: bool) -> Result:
    answer = await client.post(case.path, json=case.body(is_streamed))
    assert answer.status_code == 200, answer.text
    if not is_streamed:
        return READERS[case.path]([answer.json()])
    kind = answer.headers["content-type"].split(";")[0]
    if kind == "application/x-ndjson":
        return READERS[case.path]([json.loads(line) for line in answer.text.split("\n") if line])
    assert kind == "text/event-stream"
    data = [line[6:] for line in answer.text.split("\n") if line.startswith("data: {")]
    return READERS[case.path]([json.loads(line) for line in data])


def read_completion(parts: Sequence[Any]) -> Result:
    choices = [part["choices"][0] for part in parts if part["choices"]]
    lists = [one["logprobs"]["token_logprobs"] for one in choices if one["logprobs"]]
    return Result(
        "".join(one["text"] for one in choices), *openai_usage(parts), tuple(sum(lists, []))
    )


def read_chat(parts: Sequence[Any]) -> Result:
    choices = [part["choices"][0] for part in parts if part["choices"]]
    texts = [one.get("message", one.get("delta")).get("content") or "" for one in choices]
    entries = [entry for one in choices if one["logprobs"] for entry in one["logprobs"]["content"]]
    values = tuple(entry["logprob"] for entry in entries)
    return Result("".join(texts), *openai_usage(parts), values)


def openai_usage(parts: Sequence[Any]) -> tuple[int, int]:
    usage = parts[-1]["usage"]
    return usage["prompt_tokens"], usage["completion_tokens"]


def read_response(parts: Sequence[Any]) -> Result:
    last = parts[-1].get("response", parts[-1])
    (content,) = last["output"][0]["content"]
    deltas = [part["delta"] for part in parts if part.get("type") == "response.output_text.delta"]
    text = "".join(deltas) if len(parts) > 1 else content["text"]
    values = tuple(entry["logprob"] for entry in content["logprobs"])
    return Result(text, last["usage"]["input_tokens"], last["usage"]["output_tokens"], values)


def read_message(parts: Sequence[Any]) -> Result:
    if len(parts) == 1:
        usage, texts = parts[0]["usage"], [block["text"] for block in parts[0]["content"]]
    else:
        usage = {**parts[0]["message"]["usage"], **parts[-2]["usage"]}
        deltas = [part["delta"] for part in parts if part["type"] == "content_block_delta"]
        texts = [delta["text"] for delta in deltas]
    read = usage["input_tokens"] + usage["cache_read_input_tokens"]
    return Result("".join(texts), read, usage["output_tokens"], None)


def read_ollama(parts: Sequence[Any]) -> Result:
    texts = [
        part["response"] if "response" in part else part["message"]["content"] for part in parts
    ]
    values = tuple(entry["logprob"] for part in parts for entry in part.get("logprobs", ()))
    counts = parts[-1]["prompt_eval_count"], parts[-1]["eval_count"]
    return Result("".join(texts), *counts, values)


READERS = {
    "/v1/completions": read_completion,
    "/v1/chat/completions": read_chat,
    "/v1/responses": read_response,
    "/v1/messages": read_message,
    "/api/chat": read_ollama,
    "/api/generate": read_ollama,
}


async def ask_all(url: str, cases: Sequence[tuple[Case, bool]]) -> list[Result]:
    """Many requests at once."""
    slots = asyncio.Semaphore(NUM_CLIENTS)

    async def ask_one(client: httpx.AsyncClient, case: Case, is_streamed: bool) -> Result:
        async with slots:
            return await ask(client, case, is_streamed)

    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        return await asyncio.gather(*(ask_one(client, *one) for one in cases))


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    service = make_service(checkpoints())
    follow(service.models.get("script").loaded)
    with running(service) as one:
        yield one


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[str, LoadedModel]]:
    """The models of the server, with engines of their own."""
    models = {name: LoadedModel(one, SMALL) for name, one in checkpoints().items()}
    follow(models["script"])
    yield models
    for loaded in models.values():
        loaded.close()


def check(server: RunningServer, engines: Mapping[str, LoadedModel], seed: int, count: int) -> None:
    """Compare random requests under load, whole and streamed, with the engine alone."""
    rng = random.Random(seed)
    cases = [random_case(rng) for _ in range(count)]
    expected = {case: alone(engines, case) for case in cases}
    asked = [(case, is_streamed) for case in cases for is_streamed in (False, True)]
    rng.shuffle(asked)
    results = asyncio.run(ask_all(server.url, asked))
    whole = {
        case: result
        for (case, is_streamed), result in zip(asked, results, strict=True)
        if not is_streamed
    }
    for (case, is_streamed), result in zip(asked, results, strict=True):
        assert result == whole[case], (case, is_streamed)
        assert_same(case, result, expected[case])
    texts = "".join(one.text for one in expected.values())
    assert all(one in texts for one in "\ufffd\U0001f31e\u82f9"), "no raw bytes, emoji or CJK"
    assert {case.path for case in cases} == set(PROTOCOLS)
    server.wait_idle()


def assert_same(case: Case, result: Result, wanted: Result) -> None:
    """The same text, counts and bits. /v1/completions and Ollama's routes also have the
    log-probability of the end token, which is not part of the text."""
    logprobs = result.logprobs
    if logprobs is not None and logprobs != wanted.logprobs:
        logprobs = (*logprobs, wanted.logprobs[-1])
    assert logprobs in (None, wanted.logprobs), case
    assert replace(result, logprobs=None) == replace(wanted, logprobs=None), case


def test_60_requests_have_the_engines_own_texts_in_all_protocols(server, engines):
    check(server, engines, 0, 60)


@pytest.mark.slow
def test_500_requests_have_the_engines_own_texts_in_all_protocols(server, engines):
    check(server, engines, 1, 500)
