"""Chat template: messages -> the prompt that a model was trained to continue.

Templates are jinja2 programs that come with a model, so they are untrusted: they are rendered in a
helper process with limits (`template_sandbox`), with the variables that `transformers` passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.core.config import read_settings, read_text
from weft.core.errors import DataError, UsageError
from weft.text.special_tokens import SpecialTokens
from weft.text.template_sandbox import SANDBOX, TemplateSandbox
from weft.text.tokenizer_files import CONFIG_FILE

TEMPLATE_FILE, OLDER_FILE, KEY = "chat_template.jinja", "chat_template.json", "chat_template"
ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_SOURCE = 100_000
"""Characters of a template; those in use have a third of it at most."""
MAX_REASON = 300

Message = Mapping[str, Any]


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
        self.run(None)

    def render(
        self, messages: Sequence[Message], add_generation_prompt: bool = True, **extra: Any
    ) -> str:
        """The prompt of a conversation; with `add_generation_prompt`, up to where the assistant's
        message begins. `extra`: further variables of the template, as plain values."""
        variables = {
            "tools": None,
            "documents": None,
            **self.special_tokens,
            **{name: plain(value, name) for name, value in extra.items()},
            "messages": check_messages(messages),
            "add_generation_prompt": add_generation_prompt,
        }
        return self.run(variables)

    def run(self, variables: Mapping[str, Any] | None) -> str:
        """Render the template, or only compile it if there are no variables."""
        kind, text = self.sandbox.render(self.source, variables)
        if kind == "text":
            return text
        if kind == "refused":
            raise UsageError(f"the chat template refuses this conversation: {sentence(text)}")
        problem = "cannot be used" if kind == "invalid" or variables is None else "failed"
        raise DataError(
            f"the chat template {problem}: {sentence(text)} Use another template, or none."
        )


def sentence(reason: str) -> str:
    """A reason of bounded length with one full stop; messages of jinja2 may end with theirs."""
    if len(reason) > MAX_REASON:
        return reason[:MAX_REASON] + "..."
    return reason if reason.endswith(("...", "!", "?")) else reason.rstrip(". ") + "."


def check_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Copies of the messages as plain values. Raises a UsageError for the first invalid one."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise UsageError(f"messages is {type(messages).__name__}: a conversation is a list.")
    if not messages:
        raise UsageError("messages is empty: a conversation has at least one message.")
    return [check_message(message, index) for index, message in enumerate(messages)]


def check_message(message: Message, index: int) -> dict[str, Any]:
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise UsageError(
            f'{where} is {type(message).__name__}: a message is {{"role": ..., "content": ...}}.'
        )
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise UsageError(f"{where} has role {role!r}: it must be one of {', '.join(ROLES)}.")
    if not isinstance(content, str):
        raise UsageError(f"{where} has content of type {type(content).__name__}: it must be text.")
    return {str(key): plain(value, where) for key, value in message.items()}


def plain(value: Any, where: str, depth: int = 0) -> Any:
    """A copy made of JSON types, which is what reaches the helper process."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if depth < 32 and isinstance(value, Mapping):
        return {str(key): plain(item, where, depth + 1) for key, item in value.items()}
    if depth < 32 and isinstance(value, (list, tuple)):
        return [plain(item, where, depth + 1) for item in value]
    raise UsageError(
        f"{where} holds a {type(value).__name__}: templates take plain values (text, numbers, "
        "lists and dicts), 32 deep at most."
    )


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
