"""Conversation (messages and tools, from any chat protocol) -> prompt, grammar and output parser.

    chat = Conversation(messages, tools, tool_choice="auto")
    generation = await start_chat(call, served, lambda: (chat, options))

Messages have OpenAI's form (role, content as text, tool_calls, tool_call_id). Tools are passed to
the model's chat template; if it has no tools, a section in the format of Hermes is added to the
system message, with a warning. If `tool_choice` is required or a name, or a function is strict, a
grammar constrains the text, so that calls are well-formed; otherwise calls are parsed in the format
of the model's family. With tools and a response format, the text is a call or has the format.
Reasoning is separated from the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from weft.core.errors import DataError, shown
from weft.engine.detokenizer import visible_special_ids
from weft.engine.grammar import Grammar
from weft.serve.api_errors import ApiError
from weft.serve.context import HttpCall
from weft.serve.generation import Generation, MakeParser, Submitted
from weft.serve.output_parser import OutputParser
from weft.serve.served_model import ServedModel
from weft.serve.text_options import TextOptions, make_request
from weft.serve.tool_formats import HermesFormat, ToolFormat
from weft.serve.tool_grammars import after_reasoning, either, special_by_name, tool_grammar
from weft.serve.tools import FunctionTool, check_tools, with_tool_section

PROMPT_END = 16
"""Number of tokens at the end of a prompt that are searched for the start tag of reasoning."""
RESERVED = ("self", "messages", "tools", "add_generation_prompt", "continue_final_message")
"""Template variables that chat_template_kwargs may not set."""
TEXT_PARTS = ("text", "input_text", "output_text", "refusal")


@dataclass(frozen=True)
class Conversation:
    """Messages, tools and template variables of a request, in OpenAI's form."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    """{"type": "function", "function": {...}}; the protocol has dropped other kinds."""
    tool_choice: str = "auto"
    """auto, none, required, or the name of a function."""
    is_parallel: bool = True
    """Whether an answer may contain several calls."""
    template: Mapping[str, Any] = field(default_factory=dict)
    """Further variables of the chat template."""
    continue_final_message: bool = False
    """Continue the last message, which is the assistant's."""
    add_generation_prompt: bool | None = None
    """None: yes, unless the last message is continued."""


@dataclass(frozen=True)
class ChatPrompt:
    """The prompt of a conversation for one model."""

    ids: list[int]
    functions: list[FunctionTool]
    tool_format: ToolFormat
    is_in_reasoning: bool
    """Whether the prompt ends inside of reasoning."""


async def start_chat(
    call: HttpCall,
    served: ServedModel,
    build: Callable[[], tuple[Conversation, TextOptions]],
) -> Generation:
    """Submit a conversation. `build`, the chat template and grammars run in a thread."""

    def submit() -> Submitted:
        chat, options = build()
        prompt = chat_prompt(call, served, chat)
        options = chat_options(served, chat, prompt, options)
        request = make_request(served, call.caller, prompt.ids, options)
        parser = parser_maker(served, chat, prompt)
        return Submitted([request], parser, options.include_stop, options.is_prompt_only)

    return await Generation.start(call, served, submit)


def chat_prompt(call: HttpCall, served: ServedModel, chat: Conversation) -> ChatPrompt:
    """Render and encode a conversation. May be called in any thread."""
    served.check_kind("decoder")
    if not served.can_chat:
        raise ApiError(
            400,
            f"model '{served.name}' has no chat template: it was not trained for conversations. "
            "Use /v1/completions, or start the server with --chat-template.",
            param="model",
        )
    functions = functions_of(chat)
    messages: Sequence[Mapping[str, Any]] = chat.messages
    if "developer" not in served.builder.template.source:  # the newer name of system
        messages = [as_system(message) for message in messages]
    extra = template_variables(chat)
    tool_format = served.tool_format
    if served.builder.template.uses_tools:
        if functions:
            extra["tools"] = [dict(one.definition) for one in functions]
    elif functions or any(one.get("tool_calls") or one.get("role") == "tool" for one in messages):
        messages, tool_format = with_tool_section(messages, functions), HermesFormat()
        call.warn("the model's chat template has no tools: they were added to the system message")
    try:
        ids = served.builder.chat_ids(
            messages,
            add_generation_prompt=chat.add_generation_prompt,
            continue_final_message=chat.continue_final_message,
            **extra,
        )
    except DataError as error:
        if not chat.template:
            raise
        names = ", ".join(map(shown, chat.template))
        raise ApiError(
            400, f"with the variables {names}: {error}", "chat_template_kwargs"
        ) from None
    return ChatPrompt(ids, functions, tool_format, begins_in_reasoning(served, chat, ids))


def template_variables(chat: Conversation) -> dict[str, Any]:
    """Further variables of the chat template; raises an ApiError for reserved names."""
    reserved = next((name for name in RESERVED if name in chat.template), None)
    if reserved is not None:
        raise ApiError(
            400,
            f"chat_template_kwargs has {reserved!r}, which the server sets. Leave it out, or "
            "use the field of the request.",
            "chat_template_kwargs",
        )
    return dict(chat.template)


def as_system(message: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**message, "role": "system"} if message.get("role") == "developer" else message


def functions_of(chat: Conversation) -> list[FunctionTool]:
    """The functions that the model may call, according to tool_choice."""
    functions = check_tools(chat.tools) if chat.tools else []
    if chat.tool_choice == "none":
        return []
    if chat.tool_choice in ("auto", "required"):
        if chat.tool_choice == "required" and not functions:
            raise ApiError(
                400, "tool_choice is required, but there are no tools. Add some.", "tool_choice"
            )
        return functions
    named = [one for one in functions if one.name == chat.tool_choice]
    if not named:
        known = ", ".join(one.name for one in functions) or "none"
        raise ApiError(
            400,
            f"tool_choice names {chat.tool_choice!r}, which is not among the tools: {known}.",
            "tool_choice",
        )
    return named


def begins_in_reasoning(served: ServedModel, chat: Conversation, ids: Sequence[int]) -> bool:
    """Whether the generated text begins inside of reasoning."""
    if served.reasoning is None:
        return False
    if chat.continue_final_message:
        return served.reasoning.is_open_in(str(chat.messages[-1].get("content") or ""))
    last = b"".join(served.tokenizer.target.token_bytes(list(ids[-PROMPT_END:])))
    return served.reasoning.is_open_after(last.decode("utf-8", "replace"))


def chat_options(
    served: ServedModel, chat: Conversation, prompt: ChatPrompt, options: TextOptions
) -> TextOptions:
    """Add the grammar of tool calls and the special tokens that the parser needs to the options."""
    names: list[str] = []
    if prompt.functions:
        names += prompt.tool_format.visible_special
    if served.reasoning is not None:
        names += served.reasoning.visible_special
    visible = options.visible_ids | visible_special_ids(served.tokenizer, names)
    grammar = answer_grammar(served, chat, prompt, options.grammar)
    if grammar is not None and served.reasoning is not None:
        special = special_by_name(served.tokenizer)
        grammar = after_reasoning(
            grammar, served.reasoning, is_in_reasoning=prompt.is_in_reasoning, special=special
        )
    return replace(options, visible_ids=visible, grammar=grammar)


def answer_grammar(
    served: ServedModel, chat: Conversation, prompt: ChatPrompt, wanted: Grammar | None
) -> Grammar | None:
    """The grammar of calls, of the response format, or of either if the model may choose."""
    if wanted is not None and prompt.functions and is_call_required(chat):
        raise ApiError(
            400,
            "tool_choice demands a call, but the request also has a format of the text: an answer "
            "is one or the other. Leave out one of them, or use tool_choice auto.",
            "tool_choice",
        )
    if wanted is None or not prompt.functions:
        return calls_grammar(served, chat, prompt) or wanted
    return either(make_calls_grammar(served, chat, prompt, is_required=True), wanted)


def is_call_required(chat: Conversation) -> bool:
    return chat.tool_choice not in ("auto", "none")


def calls_grammar(served: ServedModel, chat: Conversation, prompt: ChatPrompt) -> Grammar | None:
    """The grammar of required or strict calls; None: the text is not constrained."""
    is_required = is_call_required(chat)
    if not prompt.functions or not (is_required or is_strict(prompt)):
        return None
    return make_calls_grammar(served, chat, prompt, is_required)


def make_calls_grammar(
    served: ServedModel, chat: Conversation, prompt: ChatPrompt, is_required: bool
) -> Grammar:
    """The grammar of calls of a prompt's functions."""
    return tool_grammar(
        prompt.tool_format,
        prompt.functions,
        is_required=is_required,
        is_parallel=chat.is_parallel,
        special=special_by_name(served.tokenizer),
    )


def is_strict(prompt: ChatPrompt) -> bool:
    return any(one.is_strict for one in prompt.functions)


def parser_maker(served: ServedModel, chat: Conversation, prompt: ChatPrompt) -> MakeParser | None:
    """A factory of output parsers, one per text; None: the text is not parsed."""
    if not prompt.functions and served.reasoning is None:
        return None
    is_constrained = calls_grammar(served, chat, prompt) is not None

    def make() -> OutputParser:
        return OutputParser(
            prompt.tool_format if prompt.functions else None,
            served.reasoning,
            [one.name for one in prompt.functions],
            is_in_reasoning=prompt.is_in_reasoning,
            stream_arguments=is_constrained,
            max_calls=None if chat.is_parallel else 1,
        )

    return make


def content_text(content: Any, where: str) -> str | None:
    """The text of a message's content: a string, null, or a list of text parts, which are joined.
    Images, audio and files are rejected by name."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ApiError(
            400, f"{where} is {type(content).__name__}: it must be text or parts.", where
        )
    return "".join(part_text(part, f"{where}[{index}]") for index, part in enumerate(content))


def part_text(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind not in TEXT_PARTS:
        raise ApiError(
            400, f"{where} is of type {kind!r}: models here read text only. Send text parts.", where
        )
    text = part.get("text", part.get("refusal"))
    if not isinstance(text, str):
        raise ApiError(400, f"{where}.text is missing: a text part has it.", where)
    return text
