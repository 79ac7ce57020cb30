"""JSON schemas of request fields where the Python type says less than the server accepts.

They only describe: /openapi.json has them, and validation is as before. Formats that begin with
`weft-` stand for what depends on the models of a server; openapi.py replaces them by its model
names, its number of tokens and the width of its vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import WithJsonSchema

from weft.sampling.params import MAX_BIAS, SamplingParams

JsonSchema = dict[str, Any]

MODEL, DECODER, CHAT_MODEL = "weft-model", "weft-decoder", "weft-chat-model"
TRANSLATOR = "weft-translator"
TOKEN_ID, DIMENSION = "weft-token-id", "weft-dimension"
SOURCE, TARGET = "weft-source-language", "weft-target-language"
MAX_TEXTS, MAX_STOPS = 2048, 64

TEXT: JsonSchema = {"type": "string"}
NULL: JsonSchema = {"type": "null"}
OBJECT: JsonSchema = {"type": "object"}
TOKEN: JsonSchema = {"type": "integer", "minimum": 0, "format": TOKEN_ID}


def list_of(items: JsonSchema, at_least: int = 1, at_most: int | None = None) -> JsonSchema:
    limit = {} if at_most is None else {"maxItems": at_most}
    return {"type": "array", "items": items, "minItems": at_least, **limit}


def fields(required: str, **properties: JsonSchema) -> JsonSchema:
    """An object; `required`: names of fields that must be there."""
    return {"type": "object", "properties": properties, "required": required.split()}


def one_of(*values: str) -> JsonSchema:
    return {"type": "string", "enum": list(values)}


def described(schema: JsonSchema, is_optional: bool = True) -> WithJsonSchema:
    """The schema of a field, in its annotation."""
    return WithJsonSchema({"anyOf": [schema, NULL]} if is_optional else schema)


def replaced_by(schema: JsonSchema) -> Callable[[JsonSchema], None]:
    """The `json_schema_extra` of a model whose fields depend on each other."""

    def replace(generated: JsonSchema) -> None:
        generated.pop("properties", None)
        generated.pop("required", None)
        generated.update(schema)

    return replace


def sampling_range(name: str, lowest: float | None = None) -> WithJsonSchema:
    """The range of a field of SamplingParams; `lowest`: a smaller value that a protocol allows."""
    schema = dict(SamplingParams.model_json_schema()["properties"][name])
    bounds = ("type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
    kept = {key: value for key, value in schema.items() if key in bounds}
    return described(kept if lowest is None else {**kept, "minimum": lowest})


ModelName = Annotated[str, WithJsonSchema({"type": "string", "format": MODEL})]
DecoderName = Annotated[str, WithJsonSchema({"type": "string", "format": DECODER})]
ChatModelName = Annotated[str, WithJsonSchema({"type": "string", "format": CHAT_MODEL})]
TranslatorName = Annotated[str, WithJsonSchema({"type": "string", "format": TRANSLATOR})]

SourceLanguage = Annotated[str, WithJsonSchema({"type": "string", "format": SOURCE})]
TargetLanguage = Annotated[str, WithJsonSchema({"type": "string", "format": TARGET})]

ResponseId = Annotated[str, WithJsonSchema({"type": "string", "pattern": "^resp_[0-9a-f]{48}$"})]

TextsOrIds = Annotated[
    str | list[str] | list[int] | list[list[int]],
    WithJsonSchema(
        {
            "anyOf": [
                TEXT,
                list_of(TEXT, 1, MAX_TEXTS),
                list_of(TOKEN),
                list_of(list_of(TOKEN), 1, MAX_TEXTS),
            ]
        }
    ),
]
TokenIds = Annotated[list[int], WithJsonSchema(list_of(TOKEN, 0))]
STOP_LIST = list_of(TEXT | {"minLength": 1}, 0, MAX_STOPS)
STOP = described({"anyOf": [TEXT | {"minLength": 1}, STOP_LIST]})
DIMENSIONS = described({"type": "integer", "minimum": 1, "format": DIMENSION})
LOGIT_BIAS = described(
    {
        "type": "object",
        "propertyNames": {"type": "string", "format": TOKEN_ID},
        "additionalProperties": {"type": "number", "minimum": -MAX_BIAS, "maximum": MAX_BIAS},
    }
)

FUNCTION_NAME: JsonSchema = {"type": "string", "pattern": "^[A-Za-z0-9_.:/-]{1,128}$"}
FUNCTION = fields("name", name=FUNCTION_NAME, description=TEXT, parameters=OBJECT)
TOOL = fields("type function", type=one_of("function"), function=FUNCTION)
FLAT_TOOL = fields(
    "type name", type=one_of("function"), name=FUNCTION_NAME, description=TEXT, parameters=OBJECT
)
ANY_TOOL = {
    "anyOf": [TOOL, FLAT_TOOL, fields("type name", type=one_of("custom"), name=FUNCTION_NAME)]
}
TOOL_CHOICE = described(
    {
        "anyOf": [
            one_of("none", "auto", "required"),
            fields("type function", type=one_of("function"), function=fields("name", name=TEXT)),
            fields("type name", type=one_of("function", "custom"), name=TEXT),
            fields(
                "type tools",
                type=one_of("allowed_tools"),
                mode=one_of("auto", "required"),
                tools=list_of(fields("name", name=TEXT), 0),
            ),
        ]
    }
)

CALL = fields(
    "function", id=TEXT, type=one_of("function"), function=fields("name", name=FUNCTION_NAME)
)
CUSTOM_CALL = fields(
    "type custom",
    id=TEXT,
    type=one_of("custom"),
    custom=fields("name input", name=FUNCTION_NAME, input=TEXT),
)
ARGUMENTS: JsonSchema = {"type": "string", "enum": ["{}"]}
"""JSON text."""
TEXT_PART = fields("type text", type=one_of("text", "input_text", "output_text"), text=TEXT)
CONTENT: JsonSchema = {"anyOf": [TEXT, list_of(TEXT_PART)]}
CHAT_MESSAGE: JsonSchema = {
    "anyOf": [
        fields(
            "role content",
            role=one_of("system", "developer", "user", "assistant", "tool", "function"),
            content=CONTENT,
            name={"anyOf": [TEXT, NULL]},
            tool_call_id={"anyOf": [TEXT, NULL]},
            reasoning={"anyOf": [TEXT, NULL]},
            reasoning_content={"anyOf": [TEXT, NULL]},
            tool_calls=NULL,
        ),
        fields(
            "role tool_calls",
            role=one_of("assistant"),
            content={"anyOf": [CONTENT, NULL]},
            reasoning={"anyOf": [TEXT, NULL]},
            reasoning_content={"anyOf": [TEXT, NULL]},
            tool_calls=list_of({"anyOf": [CALL, CUSTOM_CALL]}),
        ),
        fields(
            "role function_call",
            role=one_of("assistant"),
            content={"anyOf": [CONTENT, NULL]},
            function_call=fields("name arguments", name=FUNCTION_NAME, arguments=ARGUMENTS),
            tool_calls=NULL,
        ),
        fields(
            "role refusal",
            role=one_of("assistant"),
            content={"anyOf": [CONTENT, NULL]},
            refusal=TEXT,
            tool_calls=NULL,
        ),
    ]
}

ANTHROPIC_TEXT = fields("type text", type=one_of("text"), text=TEXT)
SYSTEM_BLOCKS: JsonSchema = {"anyOf": [TEXT, list_of(ANTHROPIC_TEXT, 0)]}
USER_BLOCK = {
    "anyOf": [
        ANTHROPIC_TEXT,
        fields("type tool_use_id", type=one_of("tool_result"), tool_use_id=TEXT, content=TEXT),
    ]
}
ASSISTANT_BLOCK = {
    "anyOf": [
        ANTHROPIC_TEXT,
        fields("type thinking", type=one_of("thinking"), thinking=TEXT),
        fields(
            "type id name input", type=one_of("tool_use"), id=TEXT, name=FUNCTION_NAME, input=OBJECT
        ),
    ]
}
ANTHROPIC_MESSAGE: JsonSchema = {
    "anyOf": [
        fields("role content", role=one_of(role), content=content) | {"additionalProperties": False}
        for role, content in {
            "user": {"anyOf": [TEXT | {"minLength": 1}, list_of(USER_BLOCK)]},
            "assistant": {"anyOf": [TEXT, list_of(ASSISTANT_BLOCK)]},
            "system": SYSTEM_BLOCKS,
        }.items()
    ]
}
ANTHROPIC_TOOL = fields(
    "name", type=one_of("custom"), name=FUNCTION_NAME, description=TEXT, input_schema=OBJECT
)

RESPONSE_ITEM: JsonSchema = {
    "anyOf": [
        fields(
            "role content",
            type=one_of("message"),
            role=one_of("user", "assistant", "system", "developer"),
            content=CONTENT,
        ),
        fields(
            "type summary", type=one_of("reasoning"), summary=list_of(fields("text", text=TEXT), 0)
        ),
        fields(
            "type call_id name arguments",
            type=one_of("function_call"),
            call_id=TEXT,
            name=FUNCTION_NAME,
            arguments=TEXT,
        ),
        fields("type id", type=one_of("item_reference"), id=TEXT),
        fields(
            "type call_id output", type=one_of("function_call_output"), call_id=TEXT, output=CONTENT
        ),
    ]
}
RESPONSE_INPUT = {"anyOf": [TEXT, list_of(RESPONSE_ITEM)]}

OLLAMA_MESSAGE: JsonSchema = {
    "anyOf": [
        fields("role content", role=one_of("system", "user", "assistant", "tool"), content=TEXT),
        fields(
            "role tool_calls",
            role=one_of("assistant"),
            content=TEXT,
            tool_calls=list_of(fields("function", function=fields("name", name=FUNCTION_NAME))),
        ),
    ]
}
