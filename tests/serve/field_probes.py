"""How each honored field of a request shows its effect: requests with it and without it.

A `Probe` has the field's value and a check of both answers; without a check they must differ.
`PROBES` has one for every honored field of every route, by route and name (`options.seed`);
test_fields.py fails for a field that has none.
"""

from __future__ import annotations

import secrets
from typing import Any

from tests.serve.field_checks import (
    ANTHROPIC_TOOLS,
    CHAT,
    COMPLETE,
    EMBED,
    FUNCTION,
    MESSAGE,
    MESSAGE_COUNT,
    OLLAMA_CHAT,
    OLLAMA_EMBED,
    OLLAMA_GENERATE,
    OTHER_USER,
    RESPOND,
    RESPOND_COUNT,
    SCRIPT,
    SPECIAL,
    TOOLS,
    USER,
    YES,
    Answer,
    Check,
    Probe,
    becomes_greedy,
    byte,
    completion_id,
    has_logprobs,
    is_greedy,
    is_not_stored,
    is_other_namespace,
    missing_model,
    num_new,
    num_top,
    objects,
    prompt_has,
    renamed,
    same,
    stored_id,
    streamed_text,
    text_is,
)

RANDOM = {"model": "text", "max_tokens": 12}
GREEDY = {**RANDOM, "temperature": 0}

SAMPLING = {
    "temperature": Probe(0, becomes_greedy, RANDOM),
    "top_p": Probe(1e-6, becomes_greedy, RANDOM),
    "top_k": Probe(1, becomes_greedy, RANDOM),
    "min_p": Probe(0.999, becomes_greedy, RANDOM),
    "presence_penalty": Probe(2, base=GREEDY),
    "frequency_penalty": Probe(2, base=GREEDY),
    "repetition_penalty": Probe(9.0, base=GREEDY),
    "logit_bias": Probe({"45": 1e4}, text_is("(" * 12), RANDOM),
    "seed": Probe(5, base=RANDOM),
    "stop": Probe("i", text_is("H")),
    "n": Probe(3, lambda seen, other: len(seen.json["choices"]) == 3),
    "stream": Probe(True, streamed_text),
    "stream_options": Probe(
        {"include_usage": True},
        lambda a, b: a.response.text.count('"usage":{') == 1 and "usage" not in b.response.text,
        {"stream": True},
    ),
    "ignore_eos": Probe(True, num_new(12), {"max_tokens": 12}),
    "min_tokens": Probe(9, lambda seen, other: seen.num_new >= 9 > other.num_new),
    "stop_token_ids": Probe(byte("i"), text_is("H")),
    "include_stop_str_in_output": Probe(True, text_is("Hi"), {"stop": "i"}),
    "skip_special_tokens": Probe(False, text_is(SCRIPT)),
    "structured_outputs": Probe({"choice": ["yes"]}, text_is("yes")),
    "use_beam_search": Probe(
        True, lambda a, b: a.request.beam.num_best == 2 and a.text != b.text, {**RANDOM, "n": 2}
    ),
    "length_penalty": Probe(
        0.0,
        lambda seen, other: (
            seen.request.beam.length_penalty == 0 and other.request.beam.length_penalty == 1
        ),
        {**RANDOM, "n": 2, "use_beam_search": True},
    ),
    "cache_salt": Probe(lambda server: secrets.token_hex(4), is_other_namespace),
}
CALLS = {
    "tools": Probe(TOOLS, lambda a, b: a.calls == 2 and "<tools>" in a.prompt and not b.calls),
    "tool_choice": Probe("none", lambda a, b: a.calls == 0 and b.calls == 2, {"tools": TOOLS}),
    "parallel_tool_calls": Probe(
        False, lambda a, b: a.calls == 1 and b.calls == 2, {"tools": TOOLS}
    ),
}
OLDER_CALLS = {
    "functions": Probe([FUNCTION], lambda a, b: a.calls == 1 and not b.calls),
    "function_call": Probe("none", lambda a, b: not a.calls and b.calls, {"functions": [FUNCTION]}),
}


JSON_FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": YES}}
CHAT_PROBES = {
    **SAMPLING,
    **CALLS,
    **OLDER_CALLS,
    "model": missing_model(),
    "messages": Probe(OTHER_USER, prompt_has("a dog")),
    "max_completion_tokens": Probe(3, num_new(3), {"max_tokens": None}),
    "max_tokens": Probe(3, num_new(3)),
    "logprobs": Probe(True, has_logprobs),
    "top_logprobs": Probe(2, num_top("top_logprobs", 2), {"logprobs": True}),
    "prompt_logprobs": Probe(1, lambda a, b: len(a.json["prompt_logprobs"]) > 3),
    "response_format": Probe(JSON_FORMAT, text_is('"yes"')),
    "add_generation_prompt": Probe(
        False, lambda seen, other: other.prompt == f"{seen.prompt}<|im_start|>assistant\n"
    ),
    "continue_final_message": Probe(
        True,
        lambda seen, other: seen.prompt.endswith("assistant\nHe"),
        {"messages": [*USER, {"role": "assistant", "content": "He"}]},
    ),
    "include_reasoning": Probe(
        False,
        lambda a, b: "reasoning_content" not in a.response.text and '"hm"' in b.response.text,
        {"model": "thinker"},
    ),
}
COMPLETION_PROBES = {
    **SAMPLING,
    "model": missing_model(),
    "prompt": Probe("a dog", prompt_has("a dog")),
    "max_tokens": Probe(3, num_new(3)),
    "best_of": Probe(4, lambda a, b: a.request.n == 4 and len(a.json["choices"]) == 1, RANDOM),
    "echo": Probe(True, text_is("the cat sat on the matHi!")),
    "logprobs": Probe(2, lambda a, b: len(a.json["choices"][0]["logprobs"]["top_logprobs"][0]) > 1),
    "prompt_logprobs": Probe(1, lambda a, b: len(a.json["choices"][0]["prompt_logprobs"]) > 3),
}
NOT_OF_RESPONSES = ("n", "use_beam_search", "length_penalty", "stream_options")
RESPONSE_INPUT = {
    "model": missing_model(),
    "input": Probe("a dog with a bone"),
    "instructions": Probe("be brief"),
    "previous_response_id": Probe(stored_id),
    "text": Probe({"verbosity": "low"}),
    "reasoning": Probe({"effort": "high"}),
}
RESPONSE_PROBES = {
    **renamed(
        {name: one for name, one in SAMPLING.items() if name not in NOT_OF_RESPONSES},
        max_tokens="max_output_tokens",
    ),
    **CALLS,
    "model": missing_model(),
    "input": Probe("a dog", prompt_has("a dog")),
    "instructions": Probe("be brief", prompt_has("<|im_start|>system\nbe brief")),
    "previous_response_id": Probe(stored_id, prompt_has("earlier")),
    "text": Probe(
        {"format": {"type": "json_schema", "name": "a", "schema": YES}}, text_is('"yes"')
    ),
    "reasoning": Probe({"effort": "high"}, prompt_has("(high)")),
    "max_output_tokens": Probe(3, num_new(3)),
    "include": Probe(["message.output_text.logprobs"], has_logprobs),
    "top_logprobs": Probe(
        2,
        lambda a, b: all(
            len(one["top_logprobs"]) == 2 for one in a.json["output"][0]["content"][0]["logprobs"]
        ),
        {"include": ["message.output_text.logprobs"]},
    ),
    "store": Probe(False, is_not_stored),
    "metadata": Probe({"a": "b"}, lambda seen, other: seen.json["metadata"] == {"a": "b"}),
}
ANTHROPIC_SCHEMA = {"type": "json_schema", "schema": YES}
ANTHROPIC_CALLS = {"tools": ANTHROPIC_TOOLS}


def anthropic_choice(kind: str, **more: Any) -> dict[str, Any]:
    return {**ANTHROPIC_CALLS, "tool_choice": {"type": kind, **more}}


MESSAGE_PROBES = {
    "temperature": Probe(0, is_greedy, RANDOM),
    "top_k": Probe(1, is_greedy, RANDOM),
    "top_p": Probe(1e-6, is_greedy, RANDOM),
    "stream": SAMPLING["stream"],
    "cache_salt": SAMPLING["cache_salt"],
    "model": missing_model(),
    "messages": Probe(OTHER_USER, prompt_has("a dog")),
    "system": Probe("be brief", prompt_has("<|im_start|>system\nbe brief")),
    "tools": Probe(ANTHROPIC_TOOLS, lambda a, b: a.calls == 2 and not b.calls),
    "tool_choice": Probe({"type": "none"}, lambda a, b: not a.calls and b.calls, ANTHROPIC_CALLS),
    "tool_choice.name": Probe(
        "second",
        lambda a, b: '"name":"second"' in a.response.text,
        anthropic_choice("tool", name="f"),
    ),
    "tool_choice.disable_parallel_tool_use": Probe(
        True, lambda a, b: a.calls == 1 and b.calls == 2, anthropic_choice("auto")
    ),
    "output_config": Probe({"format": ANTHROPIC_SCHEMA}, text_is('"yes"')),
    "output_config.format": Probe(ANTHROPIC_SCHEMA, text_is('"yes"')),
    "output_format": Probe(ANTHROPIC_SCHEMA, text_is('"yes"')),
    "max_tokens": Probe(3, num_new(3)),
    "stop_sequences": Probe(["i"], text_is("H")),
}
MESSAGE_COUNT_PROBES = {
    "model": missing_model(),
    "messages": Probe(OTHER_USER),
    "system": Probe("be brief"),
    "tools": Probe(ANTHROPIC_TOOLS),
    "tool_choice": Probe({"type": "none"}, base=ANTHROPIC_CALLS),
    "tool_choice.name": Probe("second", base=anthropic_choice("tool", name="f")),
    "tool_choice.disable_parallel_tool_use": Probe(True, same, anthropic_choice("auto")),
    "output_config": Probe({"effort": "high"}),
    "output_config.format": Probe(ANTHROPIC_SCHEMA, same),
    "output_format": Probe(ANTHROPIC_SCHEMA, same),
}
OLLAMA_RANDOM = {"model": "text", "options": {"num_predict": 12, "seed": 4}}
OLLAMA_GREEDY = {"model": "text", "options": {"num_predict": 12, "temperature": 0}}
OLLAMA_PROBES = {
    "model": missing_model(),
    "options": Probe({"num_predict": 3}, num_new(3)),
    "options.num_predict": Probe(3, num_new(3)),
    "options.temperature": Probe(0, becomes_greedy, OLLAMA_RANDOM),
    "options.top_k": Probe(1, becomes_greedy, OLLAMA_RANDOM),
    "options.top_p": Probe(1e-6, becomes_greedy, OLLAMA_RANDOM),
    "options.min_p": Probe(0.999, becomes_greedy, OLLAMA_RANDOM),
    "options.repeat_penalty": Probe(9.0, base=OLLAMA_GREEDY),
    "options.presence_penalty": Probe(2, base=OLLAMA_GREEDY),
    "options.frequency_penalty": Probe(2, base=OLLAMA_GREEDY),
    "options.seed": Probe(5, base=OLLAMA_RANDOM),
    "options.stop": Probe("i", text_is("H")),
    "stream": Probe(True, streamed_text),
    "format": Probe(YES, text_is('"yes"')),
    "logprobs": Probe(True, has_logprobs),
    "top_logprobs": Probe(2, num_top("top_logprobs", 2), {"logprobs": True}),
}
OLLAMA_CHAT_PROBES = {
    **OLLAMA_PROBES,
    "messages": Probe(OTHER_USER, prompt_has("a dog")),
    "tools": Probe(TOOLS, lambda a, b: len(a.json["message"]["tool_calls"]) == 2),
}
OLLAMA_GENERATE_PROBES = {
    **OLLAMA_PROBES,
    "prompt": Probe("a dog", prompt_has("a dog")),
    "system": Probe("be brief", prompt_has("<|im_start|>system\nbe brief")),
    "raw": Probe(True, lambda a, b: "<|im_start|>" not in a.prompt and "the cat" in a.prompt),
}
LONG_TEXT = "the cat sat on the mat " * 30
MESSAGES_TO_COUNT = {"prompt": None, "messages": USER}
CONTENT = {"prompt": None, "content": f"a{SPECIAL}"}


def num_numbers(seen: Answer, other: Answer) -> bool:
    """A vector of 5 numbers."""
    vectors = [one["embedding"] for one in objects(seen.json) if "embedding" in one]
    return len((vectors or seen.json["embeddings"])[0]) == 5


def more_tokens(count: int) -> Check:
    return lambda seen, other: seen.json["count"] == other.json["count"] + count


TOKENIZE_PROBES = {
    "model": missing_model(),
    "prompt": Probe("a dog"),
    "messages": Probe(USER, base={"prompt": None, "content": "a"}, status=400),
    "content": Probe("a dog", base=MESSAGES_TO_COUNT, status=400),
    "add_special_tokens": Probe(False, more_tokens(-1)),
    "return_token_strs": Probe(True, lambda a, b: len(a.json["token_strs"]) == a.json["count"]),
    "add_generation_prompt": Probe(
        False, lambda a, b: a.json["count"] < b.json["count"], MESSAGES_TO_COUNT
    ),
    "continue_final_message": Probe(
        True, base={"prompt": None, "messages": [*USER, {"role": "assistant", "content": "a"}]}
    ),
    "tools": Probe(TOOLS, lambda a, b: a.json["count"] > b.json["count"], MESSAGES_TO_COUNT),
    "chat_template_kwargs": Probe({"verbosity": "low"}, more_tokens(3), MESSAGES_TO_COUNT),
    "add_special": Probe(True, base=CONTENT),
    "parse_special": Probe(False, more_tokens(len(SPECIAL) - 1), CONTENT),
    "with_pieces": Probe(True, lambda a, b: a.json["tokens"][0]["piece"] == "a", CONTENT),
}


def rows(seen: Answer, other: Answer, name: str, value: int) -> bool:
    return {one[name] for one in seen.json["heads"]} == {value}


ATTENTION_BASE = {"id": completion_id}
PROBES: dict[str, dict[str, Probe]] = {
    CHAT: CHAT_PROBES,
    COMPLETE: COMPLETION_PROBES,
    EMBED: {
        "model": missing_model(),
        "input": Probe("a dog"),
        "encoding_format": Probe(
            "base64", lambda a, b: isinstance(a.json["data"][0]["embedding"], str)
        ),
        "dimensions": Probe(5, num_numbers),
    },
    RESPOND: RESPONSE_PROBES,
    RESPOND_COUNT: {
        **RESPONSE_INPUT,
        "tools": Probe(TOOLS),
        "tool_choice": Probe("none", base={"tools": TOOLS}),
        "parallel_tool_calls": Probe(False, same, {"tools": TOOLS}),
    },
    MESSAGE: MESSAGE_PROBES,
    MESSAGE_COUNT: MESSAGE_COUNT_PROBES,
    OLLAMA_CHAT: OLLAMA_CHAT_PROBES,
    OLLAMA_GENERATE: OLLAMA_GENERATE_PROBES,
    OLLAMA_EMBED: {
        "model": missing_model(),
        "input": Probe("a dog"),
        "truncate": Probe(
            False, lambda a, b: "x-weft-truncated" in b.response.headers, {"input": LONG_TEXT}, 400
        ),
        "dimensions": Probe(5, num_numbers),
    },
    "/api/embeddings": {"model": missing_model(), "prompt": Probe("a dog")},
    "/api/show": {
        "model": missing_model(),
        "name": Probe("encoder", base={"model": None}, other_status=400),
    },
    "/translate": {
        "model": missing_model(),
        "q": Probe("a dog"),
        "source": Probe("xx", lambda a, b: "xx" in a.json["error"], status=400),
        "target": Probe("xx", lambda a, b: "xx" in a.json["error"], status=400),
        "format": Probe("html", lambda a, b: "html" in a.json["error"], status=400),
        "alternatives": Probe(1, lambda a, b: len(a.json["alternatives"]) == 1),
        "beam": Probe(3, lambda a, b: a.request.beam.width == 3 != b.request.beam),
        "api_key": Probe("k1", base={}, other_status=403, headers={"x-api-key": ""}),
    },
    "/v1/rerank": {
        "model": missing_model(),
        "query": Probe("a dog"),
        "documents": Probe(["mat"]),
        "top_n": Probe(1, lambda a, b: len(a.json["results"]) == 1 < len(b.json["results"])),
        "return_documents": Probe(True, lambda a, b: "document" in a.json["results"][0]),
    },
    "/v1/score": {
        "model": missing_model(),
        "text_1": Probe("a dog"),
        "text_2": Probe("a dog"),
    },
    "/tokenize": TOKENIZE_PROBES,
    "/detokenize": {"model": missing_model(), "tokens": Probe([72, 73])},
    "/v1/attention": {
        "id": Probe("cmpl-0", base=ATTENTION_BASE, status=404),
        "position": Probe(2, base=ATTENTION_BASE),
        "index": Probe(7, base=ATTENTION_BASE, status=400),
        "layer": Probe(1, lambda a, b: rows(a, b, "layer", 1), ATTENTION_BASE),
        "head": Probe(1, lambda a, b: rows(a, b, "head", 1), ATTENTION_BASE),
    },
}
