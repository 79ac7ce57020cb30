"""The scripted model says its script, whatever a request asks."""

from __future__ import annotations

import pytest

from tests.serve import scripted
from tests.serve.scripted import PLAIN_TEMPLATE, scripted_service
from tests.serve.server import running

TEXT = 'Grüße, 世界 🙂 <tool_call>{"name": "f"}</tool_call>\n'


def test_every_request_generates_the_script():
    with running(scripted_service(TEXT)) as server:
        body = {"model": "scripted", "prompt": "a", "max_tokens": 500, "seed": 5}
        for change in ({}, {"temperature": 0}, {"temperature": 2, "n": 3}, {"top_p": 0.1}):
            value = server.post("/v1/completions", {**body, **change}).json()
            assert all(one["text"] == TEXT for one in value["choices"]), value
            assert all(one["finish_reason"] == "stop" for one in value["choices"])
        assert value["usage"]["completion_tokens"] == len(TEXT.encode()) + 1
        server.wait_idle()


def test_a_script_may_depend_on_the_prompt_and_have_special_tokens():
    def script(prompt: str) -> str:
        return "ja[TOOL_CALLS]" if "dog" in prompt else "nein"

    service = scripted_service(script, special=["[TOOL_CALLS]"])
    with running(service) as server:
        body = {"model": "scripted", "prompt": ["a dog", "a cat"], "max_tokens": 50}
        value = server.post("/v1/completions", body).json()
        assert [one["text"] for one in value["choices"]] == ["ja", "nein"]
        assert value["usage"]["completion_tokens"] == 4 + 5


@pytest.mark.parametrize("name", [one for one in dir(scripted) if one.endswith("_TEMPLATE")])
def test_every_template_renders(name):
    service = scripted_service("x", getattr(scripted, name), max_len=64)
    served = service.models.get("scripted")
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
    calls = [{"id": "1", "function": {"name": "weather", "arguments": "{}"}}]
    messages = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "How warm is it?"},
        {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "1", "content": "21"},
    ]
    text = served.builder.template.render(messages, tools=tools)
    assert "How warm is it?" in text and "21" in text
    assert served.builder.template.uses_tools == (getattr(scripted, name) != PLAIN_TEMPLATE)
    assert (served.reasoning is not None) == ("THINK" in name)
    formats = {"MISTRAL_TEMPLATE": "mistral", "LLAMA3_TEMPLATE": "llama3"}
    assert served.tool_format.name == formats.get(name, "hermes")
    service.models.close()
