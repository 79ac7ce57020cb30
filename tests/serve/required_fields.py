"""The fields that each object of each protocol must have, written from the protocols' published
descriptions and not from the classes of src, so that a field that both lack is noticed.

    str, int, float, bool, dict      a value of this type; an integer is also a float
    None, (str, None)                null; one of several
    {"stop", "length"}               one of these values
    [shape], [shape, ...]            a list; one that is not empty
    "Name"                           an object of OBJECTS

A field whose name ends in `?` may be missing. Further fields are allowed: extensions of vLLM and
others. `UNIONS` are objects that their `type` tells apart.
"""

from __future__ import annotations

from typing import Any

Shape = Any
INTEGERS_OR_NONE = ([int], None)
FINISH = {"stop", "length", "tool_calls", "content_filter", "function_call"}
STATUS = {"completed", "incomplete", "in_progress", "failed"}
PLACE = {"sequence_number": int, "item_id": str, "output_index": int}
PART = {**PLACE, "content_index": int}

OPENAI: dict[str, dict[str, Shape]] = {
    "OpenAIError": {"error": "OpenAIErrorFields"},
    "OpenAIErrorFields": {
        "message": str,
        "type": str,
        "param": (str, None),
        "code": (str, None),
    },
    "ModelList": {"object": {"list"}, "data": ["Model"]},
    "Model": {
        "id": str,
        "object": {"model"},
        "created": int,
        "owned_by": str,
        "root": str,
        "parent": (str, None),
        "max_model_len": int,
    },
    "Usage": {
        "prompt_tokens": int,
        "completion_tokens": int,
        "total_tokens": int,
        "prompt_tokens_details": "PromptDetails",
        "completion_tokens_details": "CompletionDetails",
    },
    "PromptDetails": {"cached_tokens": int},
    "CompletionDetails": {"reasoning_tokens": int},
    # /v1/chat/completions
    "Chat": {
        "id": str,
        "object": {"chat.completion"},
        "created": int,
        "model": str,
        "choices": ["ChatChoice", ...],
        "usage": "Usage",
    },
    "ChatChoice": {
        "index": int,
        "finish_reason": FINISH,
        "message": "ChatMessage",
        "logprobs": ("ChatLogprobs", None),
    },
    "ChatMessage": {
        "role": {"assistant"},
        "content": (str, None),
        "refusal": (str, None),
        "tool_calls?": ["ChatCall", ...],
        "function_call?": "ChatFunction",
        "reasoning?": str,
        "reasoning_content?": str,
    },
    "ChatCall": {"id": str, "type": {"function"}, "function": "ChatFunction"},
    "ChatFunction": {"name": str, "arguments": str},
    "ChatLogprobs": {
        "content": (["TokenLogprob"], None),
        "refusal": (["TokenLogprob"], None),
    },
    "TokenLogprob": {
        "token": str,
        "logprob": float,
        "bytes": INTEGERS_OR_NONE,
        "top_logprobs": ["TopLogprob"],
    },
    "TopLogprob": {"token": str, "logprob": float, "bytes": INTEGERS_OR_NONE},
    "ChatChunk": {
        "id": str,
        "object": {"chat.completion.chunk"},
        "created": int,
        "model": str,
        "choices": ["ChatChunkChoice"],
        "usage?": ("Usage", None),
    },
    "ChatChunkChoice": {
        "index": int,
        "delta": "ChatDelta",
        "finish_reason": (FINISH, None),
        "logprobs": ("ChatLogprobs", None),
    },
    "ChatDelta": {
        "role?": {"assistant"},
        "content?": (str, None),
        "refusal?": (str, None),
        "tool_calls?": ["ChatCallDelta", ...],
        "function_call?": "ChatFunctionDelta",
        "reasoning?": str,
        "reasoning_content?": str,
    },
    "ChatCallDelta": {
        "index": int,
        "id?": str,
        "type?": {"function"},
        "function": "ChatFunctionDelta",
    },
    "ChatFunctionDelta": {"name?": str, "arguments": str},
    # /v1/completions; its chunks are the same objects without an end
    "Completion": {
        "id": str,
        "object": {"text_completion"},
        "created": int,
        "model": str,
        "choices": ["CompletionChoice", ...],
        "usage": "Usage",
    },
    "CompletionChoice": {
        "index": int,
        "text": str,
        "finish_reason": {"stop", "length", "content_filter"},
        "logprobs": ("CompletionLogprobs", None),
    },
    "CompletionChunk": {
        "id": str,
        "object": {"text_completion"},
        "created": int,
        "model": str,
        "choices": ["CompletionChunkChoice"],
        "usage?": ("Usage", None),
    },
    "CompletionChunkChoice": {
        "index": int,
        "text": str,
        "finish_reason": ({"stop", "length", "content_filter"}, None),
        "logprobs": ("CompletionLogprobs", None),
    },
    "CompletionLogprobs": {
        "tokens": [str],
        "token_logprobs": [(float, None)],
        "top_logprobs": ([(dict, None)], None),
        "text_offset": [int],
    },
    # /v1/embeddings
    "Embeddings": {
        "object": {"list"},
        "model": str,
        "data": ["Embedding", ...],
        "usage": "EmbeddingUsage",
    },
    "Embedding": {"object": {"embedding"}, "index": int, "embedding": ([float, ...], str)},
    "EmbeddingUsage": {"prompt_tokens": int, "total_tokens": int},
    # /v1/responses
    "Response": {
        "id": str,
        "object": {"response"},
        "created_at": int,
        "status": STATUS,
        "error": ("ResponseError", None),
        "incomplete_details": ("IncompleteDetails", None),
        "instructions": (str, None),
        "metadata": (dict, None),
        "model": str,
        "output": ["OutputItem"],
        "parallel_tool_calls": bool,
        "temperature": (float, None),
        "tool_choice": (str, dict),
        "tools": [dict],
        "top_p": (float, None),
        "text": dict,
        "usage": ("ResponseUsage", None),
        "max_output_tokens": (int, None),
        "previous_response_id": (str, None),
        "reasoning": dict,
        "store": bool,
        "truncation": {"auto", "disabled"},
        "background": bool,
        "service_tier": str,
        "user": (str, None),
    },
    "ResponseError": {"code": str, "message": str},
    "IncompleteDetails": {"reason": {"max_output_tokens", "content_filter"}},
    "ResponseUsage": {
        "input_tokens": int,
        "input_tokens_details": "InputDetails",
        "output_tokens": int,
        "output_tokens_details": "OutputDetails",
        "total_tokens": int,
    },
    "InputDetails": {"cached_tokens": int, "cache_write_tokens": int},
    "OutputDetails": {"reasoning_tokens": int},
    "message": {
        "id": str,
        "type": {"message"},
        "role": {"assistant"},
        "status": STATUS,
        "content": ["OutputPart"],
    },
    "output_text": {
        "type": {"output_text"},
        "text": str,
        "annotations": [dict],
        "logprobs": ["TokenLogprob"],
    },
    "reasoning": {
        "id": str,
        "type": {"reasoning"},
        "summary": [dict],
        "content": ["OutputPart"],
        "status": STATUS,
    },
    "reasoning_text": {"type": {"reasoning_text"}, "text": str},
    "function_call": {
        "id": str,
        "type": {"function_call"},
        "call_id": str,
        "name": str,
        "arguments": str,
        "status": STATUS,
    },
    "custom_tool_call": {
        "id": str,
        "type": {"custom_tool_call"},
        "call_id": str,
        "name": str,
        "input": str,
    },
    "InputTokens": {"object": {"response.input_tokens"}, "input_tokens": int},
    "DeletedResponse": {"id": str, "object": {"response"}, "deleted": {True}},
    "ItemList": {
        "object": {"list"},
        "data": [dict],
        "first_id": str,
        "last_id": str,
        "has_more": bool,
    },
    # events of /v1/responses
    **{
        f"response.{name}": {"sequence_number": int, "response": "Response"}
        for name in ("created", "in_progress", "completed", "incomplete")
    },
    **{
        f"response.output_item.{name}": {
            "sequence_number": int,
            "output_index": int,
            "item": "OutputItem",
        }
        for name in ("added", "done")
    },
    **{
        f"response.content_part.{name}": {**PART, "part": "OutputPart"}
        for name in ("added", "done")
    },
    "response.output_text.delta": {**PART, "delta": str, "logprobs": ["TokenLogprob"]},
    "response.output_text.done": {**PART, "text": str, "logprobs": ["TokenLogprob"]},
    "response.reasoning_text.delta": {**PART, "delta": str},
    "response.reasoning_text.done": {**PART, "text": str},
    "response.function_call_arguments.delta": {**PLACE, "delta": str},
    "response.function_call_arguments.done": {**PLACE, "name": str, "arguments": str},
    "response.custom_tool_call_input.delta": {**PLACE, "delta": str},
    "response.custom_tool_call_input.done": {**PLACE, "input": str},
    "response.failed": {"sequence_number": int, "response": "Response"},
    "error": {
        "sequence_number": int,
        "code": (str, None),
        "message": str,
        "param": (str, None),
    },
}

ANTHROPIC: dict[str, dict[str, Shape]] = {
    "AnthropicError": {"type": {"error"}, "error": "AnthropicErrorFields", "request_id?": str},
    "AnthropicErrorFields": {"type": str, "message": str},
    "Message": {
        "id": str,
        "type": {"message"},
        "role": {"assistant"},
        "model": str,
        "content": ["Block"],
        "stop_reason": {"end_turn", "max_tokens", "stop_sequence", "tool_use"},
        "stop_sequence": (str, None),
        "usage": "MessageUsage",
    },
    "StartedMessage": {
        "id": str,
        "type": {"message"},
        "role": {"assistant"},
        "model": str,
        "content": ["Block"],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": "MessageUsage",
    },
    "MessageUsage": {
        "input_tokens": int,
        "output_tokens": int,
        "cache_creation_input_tokens": int,
        "cache_read_input_tokens": int,
    },
    "TokenCount": {"input_tokens": int},
    "text": {"type": {"text"}, "text": str},
    "thinking": {"type": {"thinking"}, "thinking": str, "signature": str},
    "tool_use": {"type": {"tool_use"}, "id": str, "name": str, "input": dict},
    "message_start": {"message": "StartedMessage"},
    "content_block_start": {"index": int, "content_block": "Block"},
    "content_block_delta": {"index": int, "delta": "BlockDelta"},
    "content_block_stop": {"index": int},
    "message_delta": {"delta": "MessageDelta", "usage": "MessageUsage"},
    "message_stop": {},
    "text_delta": {"text": str},
    "thinking_delta": {"thinking": str},
    "signature_delta": {"signature": str},
    "input_json_delta": {"partial_json": str},
    "MessageDelta": {
        "stop_reason": {"end_turn", "max_tokens", "stop_sequence", "tool_use"},
        "stop_sequence": (str, None),
    },
}

COUNTS = {
    "done_reason": {"stop", "length"},
    "total_duration": int,
    "load_duration": int,
    "prompt_eval_count": int,
    "prompt_eval_duration": int,
    "eval_count": int,
    "eval_duration": int,
}
"""In the last object of a stream, and in one that is not streamed."""
LINE = {"model": str, "created_at": str, "logprobs?": ["TokenLogprob"]}
FILE = {"name": str, "model": str, "size": int, "digest": str, "details": "Details"}
OLLAMA: dict[str, dict[str, Shape]] = {
    "OllamaError": {"error": str},
    "ChatLine": {**LINE, "message": "OllamaMessage", "done": {False}},
    "ChatEnd": {**LINE, "message": "OllamaMessage", "done": {True}, **COUNTS},
    "GenerateLine": {**LINE, "response": str, "thinking?": str, "done": {False}},
    "GenerateEnd": {**LINE, "response": str, "thinking?": str, "done": {True}, **COUNTS},
    "ModelLoaded": {**LINE, "done": {True}, "done_reason": {"load", "unload"}},
    "OllamaMessage": {
        "role": {"assistant"},
        "content": str,
        "thinking?": str,
        "tool_calls?": ["OllamaCall", ...],
    },
    "OllamaCall": {"function": "OllamaFunction"},
    "OllamaFunction": {"name": str, "arguments": dict},
    "Embed": {
        "model": str,
        "embeddings": [[float, ...], ...],
        "total_duration": int,
        "load_duration": int,
        "prompt_eval_count": int,
    },
    "OldEmbedding": {"embedding": [float, ...]},
    "Version": {"version": str},
    "Tags": {"models": ["Tag", ...]},
    "Tag": {**FILE, "modified_at": str},
    "Processes": {"models": ["Process", ...]},
    "Process": {**FILE, "expires_at": str, "size_vram": int, "context_length": int},
    "Details": {
        "parent_model": str,
        "format": str,
        "family": str,
        "families": [str, ...],
        "parameter_size": str,
        "quantization_level": str,
    },
    "Show": {
        "modelfile": str,
        "parameters": str,
        "template": str,
        "details": "Details",
        "model_info": dict,
        "capabilities": [{"completion", "tools", "thinking", "embedding", "insert"}, ...],
        "modified_at": str,
    },
}

LIBRETRANSLATE: dict[str, dict[str, Shape]] = {
    "LibreTranslateError": {"error": str},
    "Languages": {"code": str, "name": str, "targets": [str]},
    "Translation": {"translatedText": str},
    "Detected": {"translatedText": str, "detectedLanguage": "Language", "alternatives": [str]},
    "Translations": {"translatedText": [str, ...], "alternatives": [[str, ...], ...]},
    "DetectedList": {"translatedText": [str, ...], "detectedLanguage": ["Language", ...]},
    "Language": {"language": str, "confidence": float},
}

OBJECTS = {**OPENAI, **ANTHROPIC, **OLLAMA, **LIBRETRANSLATE}
UNIONS = {
    "OutputItem": {"message", "reasoning", "function_call", "custom_tool_call"},
    "OutputPart": {"output_text", "reasoning_text"},
    "Block": {"text", "thinking", "tool_use"},
    "BlockDelta": {"text_delta", "thinking_delta", "signature_delta", "input_json_delta"},
}
assert len(OBJECTS) == len(OPENAI) + len(ANTHROPIC) + len(OLLAMA) + len(LIBRETRANSLATE)


class FieldChecker:
    """Compares values with shapes, and remembers which objects it has seen."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def check(self, value: Any, shape: Shape, where: str = "") -> None:
        """An AssertionError names the first field that is missing or of another type."""
        assert self.matches(value, shape, where), f"{where} is {value!r}, not {shape!r}"

    def matches(self, value: Any, shape: Shape, where: str) -> bool:
        match shape:
            case None:
                return value is None
            case str():
                return self.is_object(value, shape, where)
            case set():
                return any(type(value) is type(one) and value == one for one in shape)
            case tuple():
                return any(
                    self.matches(value, one, where)
                    for one in shape
                    if one is None or value is not None
                )
            case list():
                return self.is_list(value, shape, where)
            case _:
                is_integer = isinstance(value, int) and not isinstance(value, bool)
                if shape in (int, float):
                    return is_integer or (shape is float and isinstance(value, float))
                return isinstance(value, shape)

    def is_list(self, value: Any, shape: list[Shape], where: str) -> bool:
        if not isinstance(value, list) or (len(shape) == 2 and not value):
            return False
        for index, one in enumerate(value):
            self.check(one, shape[0], f"{where}[{index}]")
        return True

    def is_object(self, value: Any, name: str, where: str) -> bool:
        """Check the fields of an object, or of the one of a union that its type names."""
        if not isinstance(value, dict):
            return False
        if name in UNIONS:
            assert value.get("type") in UNIONS[name], f"{where}.type is {value.get('type')!r}"
            name = value["type"]
        self.seen.add(name)
        for field, shape in OBJECTS[name].items():
            key = field.removesuffix("?")
            if key in value:
                self.check(value[key], shape, f"{where}.{key}")
            else:
                assert field.endswith("?"), f"{where} has no {key}: {value!r}"
        return True
