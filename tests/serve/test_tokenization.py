"""/tokenize and /detokenize: the tokens that the other routes read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.engine.tiny import tiny
from tests.serve.server import RunningServer, make_service, running
from weft.serve.tokenization import DetokenizeResult, TokenizeResult

TEXT = "the cat 我"
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    chat = replace(tiny("decoder"), chat_template=TEMPLATE)
    with running(make_service({"decoder": chat, "encoder": tiny("encoder")})) as one:
        yield one


def test_a_prompt_has_the_tokens_that_a_completion_reads(server):
    value = server.post("/tokenize", {"model": "decoder", "prompt": TEXT}).json()
    TokenizeResult.model_validate(value)
    loaded = server.service.models.get("decoder").loaded
    assert value == {
        "tokens": loaded.prompt_ids(TEXT),
        "count": len(loaded.prompt_ids(TEXT)),
        "max_model_len": 40,
        "token_strs": None,
    }
    body = {"model": "decoder", "prompt": TEXT, "max_tokens": 1}
    usage = server.post("/v1/completions", body).json()["usage"]
    assert usage["prompt_tokens"] == value["count"]


def test_special_tokens_and_token_texts(server):
    tokenizer = server.service.models.get("encoder").tokenizer
    body = {"model": "encoder", "prompt": TEXT, "return_token_strs": True}
    value = server.post("/tokenize", body).json()
    assert value["tokens"] == tokenizer.encode(TEXT)
    assert value["token_strs"] == tokenizer.pieces(value["tokens"])
    value = server.post("/tokenize", {**body, "add_special_tokens": False}).json()
    assert value["tokens"] == tokenizer.encode(TEXT, add_special=False)


def test_messages_have_the_tokens_of_the_chat_template(server):
    messages = [{"role": "user", "content": [{"type": "text", "text": "the cat"}]}]
    value = server.post("/tokenize", {"model": "decoder", "messages": messages}).json()
    loaded = server.service.models.get("decoder").loaded
    assert value["tokens"] == loaded.chat_ids([{"role": "user", "content": "the cat"}])


def test_the_form_of_llama_server(server):
    tokenizer = server.service.models.get("decoder").tokenizer
    body = {"model": "decoder", "content": TEXT}
    ids = tokenizer.encode(TEXT, add_special=False)
    assert server.post("/tokenize", body).json()["tokens"] == ids
    framed = server.post("/tokenize", {**body, "add_special": True}).json()["tokens"]
    assert framed == tokenizer.encode(TEXT)
    value = server.post("/tokenize", {**body, "with_pieces": True}).json()
    TokenizeResult.model_validate(value)
    assert [one["id"] for one in value["tokens"]] == ids
    pieces = [one["piece"] for one in value["tokens"]]
    data = b"".join(one.encode() if isinstance(one, str) else bytes(one) for one in pieces)
    assert data.decode().strip() == TEXT


def test_special_tokens_in_content_are_parsed_unless_refused(server):
    tokenizer = server.service.models.get("decoder").tokenizer
    body = {"model": "decoder", "content": tokenizer.special_tokens.end}
    assert server.post("/tokenize", body).json()["tokens"] == [tokenizer.end_id]
    text = server.post("/tokenize", {**body, "parse_special": False}).json()["tokens"]
    assert tokenizer.end_id not in text


def test_tokens_become_the_text_again(server):
    tokenizer = server.service.models.get("decoder").tokenizer
    ids = tokenizer.encode(TEXT)
    value = server.post("/detokenize", {"model": "decoder", "tokens": ids}).json()
    DetokenizeResult.model_validate(value)
    assert value["prompt"] == value["content"] == tokenizer.decode(ids, skip_special=False)
    assert TEXT in value["prompt"] and tokenizer.special_tokens.end in value["prompt"]


@pytest.mark.parametrize(
    "path, body, message",
    [
        ("/tokenize", {}, "none of prompt, messages and content was sent"),
        ("/tokenize", {"prompt": "a", "content": "b"}, "prompt and content was sent"),
        ("/tokenize", {"promt": "a"}, "Did you mean 'prompt'?"),
        ("/detokenize", {"tokens": [99999]}, "id 99999 is not in the vocabulary"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
    ],
)
def test_a_wrong_request_is_one_sentence(server, path, body, message):
    answer = server.post(path, {"model": "decoder", **body})
    error = answer.json()["error"]
    assert answer.status_code == 400 and message in error["message"], error


def test_one_of_several_models_has_to_be_named(server):
    for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [5]})):
        error = server.post(path, body).json()["error"]
        assert error["message"].startswith("model is missing: several models are served. Name one")
        assert error["param"] == "model" and "decoder, encoder" in error["message"]


def test_a_model_without_a_template_has_no_messages(server):
    body = {"model": "encoder", "messages": [{"role": "user", "content": "a"}]}
    answer = server.post("/tokenize", body)
    assert answer.status_code == 400 and "kind encoder" in answer.json()["error"]["message"]
