"""Chat template: messages -> the prompt that a model was trained to continue.

Templates are jinja2 programs that come with a model, so they are untrusted: they are rendered in a
helper process with limits (`template_sandbox`), with the variables that `transformers` passes.
Differs from `transformers` where content is null beside tool calls: a template that fails on it is
rendered with empty content.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.core.config import read_settings, read_text
from weft.core.errors import DataError, UsageError
from weft.text.chat_messages import Message, check_messages, plain
from weft.text.special_tokens import SpecialTokens
from weft.text.template_sandbox import SANDBOX, TemplateSandbox
from weft.text.tokenizer_names import TOKENIZER_CONFIG_FILE as CONFIG_FILE

TEMPLATE_FILE, OLDER_FILE, KEY = "chat_template.jinja", "chat_template.json", "chat_template"
MAX_SOURCE = 100_000
"""Characters of a template; those in use have a third of it at most."""
MAX_REASON = 300


class ChatTemplate:
    """A template and the special tokens it may write. Never changes."""

    def __init__(
        self,
        source: str,
        special_tokens: SpecialTokens | None = None,
        sandbox: TemplateSandbox = SANDBOX,
    ) -> None:
        if len(source) > MAX_SOURCE:
            raise DataError(
                f"the chat template has {len(source)} characters: at most {MAX_SOURCE} are allowed."
            )
        self.source, self.sandbox = source, sandbox
        self.special_tokens = (special_tokens or SpecialTokens()).to_config()
        self.variables = frozenset(self.run(None).split())
        """Names that the template reads."""

    @property
    def uses_tools(self) -> bool:
        """Whether the template has a place for tool definitions."""
        return "tools" in self.variables

    def render(
        self,
        messages: Sequence[Message],
        /,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        **extra: Any,
    ) -> str:
        """The prompt of a conversation; with `add_generation_prompt` (the default), up to where the
        assistant's message begins; with `continue_final_message`, up to the end of the last
        message's content. `extra`: further variables of the template, as plain values."""
        checked = check_messages(messages)
        tag = mark_end(checked[-1]) if continue_final_message else ""
        if continue_final_message and add_generation_prompt:
            raise UsageError(
                "add_generation_prompt and continue_final_message are both set: the prompt ends in "
                "a new message or in the last one. Choose one."
            )
        variables = {
            "tools": None,
            "documents": None,
            **self.special_tokens,
            **{name: plain(value, name) for name, value in extra.items()},
            "messages": checked,
            "add_generation_prompt": add_generation_prompt is not False and not tag,
        }
        text = self.run_with_content(variables)
        return cut_at(text, tag) if tag else text

    def run_with_content(self, variables: dict[str, Any]) -> str:
        """Render; again with empty content if the template fails because of null."""
        try:
            return self.run(variables)
        except DataError:
            messages = variables["messages"]
            if all(one["content"] is not None for one in messages):
                raise
        filled = [{**one, "content": one["content"] or ""} for one in messages]
        return self.run({**variables, "messages": filled})

    def run(self, variables: Mapping[str, Any] | None) -> str:
        """Render the template; without variables, compile it and return the names of those that it
        reads."""
        kind, text = self.sandbox.render(self.source, variables)
        if kind == "text":
            return text
        if kind == "refused":
            raise UsageError(f"the chat template refuses this conversation: {sentence(text)}")
        problem = "cannot be used" if kind == "invalid" or variables is None else "failed"
        raise DataError(
            f"the chat template {problem}: {sentence(text)} Use another template, or none."
        )


def mark_end(message: dict[str, Any]) -> str:
    """Append a tag to the content in place; returns the tag, which no content can contain."""
    if not isinstance(message["content"], str):
        raise UsageError(
            "continue_final_message is set, but the last message has no content to continue. Add "
            "the beginning of the answer."
        )
    tag = "1" + "".join(secrets.choice("23456789") for _ in range(23))
    message["content"] += tag + " "
    return tag


def cut_at(text: str, tag: str) -> str:
    """The text before the tag. A template that removed the space after it trims content, so the
    space before it is removed too."""
    before, found, after = text.rpartition(tag)
    if not found:
        raise UsageError(
            "continue_final_message is set, but the chat template does not write the content of "
            "the last message as it is. Leave it out."
        )
    return before if after.startswith(" ") else before.rstrip()


def sentence(reason: str) -> str:
    """A reason of bounded length with one full stop; messages of jinja2 may end with theirs."""
    if len(reason) > MAX_REASON:
        return reason[:MAX_REASON] + "..."
    return reason if reason.endswith(("...", "!", "?")) else reason.rstrip(". ") + "."


def find_template(folder: Path) -> str | None:
    """The chat template of a Hugging Face folder; None: it has none.

    chat_template.jinja has precedence over the config; of several named templates, "default" is
    used.
    """
    if (folder / TEMPLATE_FILE).is_file():
        return read_text(folder / TEMPLATE_FILE)
    for path in (folder / OLDER_FILE, folder / CONFIG_FILE):
        entry = read_settings(path).get(KEY) if path.is_file() else None
        if entry:
            return choose_template(entry, path)
    return None


def choose_template(entry: Any, path: Path) -> str:
    """One template of an entry: a string, {name: string}, or [{"name": ..., "template": ...}]."""
    if isinstance(entry, str):
        return entry
    named = entry
    if isinstance(entry, list):
        items = [item for item in entry if isinstance(item, Mapping)]
        named = {item.get("name"): item.get("template") for item in items}
    if isinstance(named, Mapping) and named:
        chosen = named.get("default", next(iter(named.values())))
        if isinstance(chosen, str):
            return chosen
    raise DataError(f"{KEY} is neither a template nor a list of named ones.", path)
