"""What the model of the client tests says: a tool call, JSON, or a sentence, by its prompt."""

from __future__ import annotations

import json
import re

from tests.serve.scripted import NAME, scripted_service
from weft.serve.context import Service

SENTENCE = "It is sunny: 22 \u00b0C \U0001f31e"
"""Has characters of several bytes, as streams must keep them whole."""
CITY = {"city": "Rome"}
MAX_LEN = 16384


def answer(prompt: str) -> str:
    """A call of the first tool that is offered, until the prompt has a result; the city as JSON if
    the prompt asks for it; else a sentence."""
    tools = re.search(r"<tools>.*?\"name\": *\"(\w+)\"", prompt, re.DOTALL)
    if tools and "sunny" not in prompt:
        call = {"name": tools[1], "arguments": CITY}
        return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
    return json.dumps(CITY) if "JSON" in prompt else SENTENCE


def speaking_service() -> Service:
    """A service with the model `scripted`."""
    return scripted_service(answer, max_len=MAX_LEN)


MODEL = NAME
