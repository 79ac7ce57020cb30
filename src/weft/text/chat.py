"""A conversation -> the text that a model was trained to continue, by the template that it brings.

Templates are written in jinja2 by whoever made the model, so they are strangers' programs: they
run in a sandbox (see sandbox/) that knows the names `transformers` gives them, and no more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.core.config import read_settings, read_text
from weft.core.errors import DataError, UsageError
from weft.text.specials import Specials
from weft.text.storage import SIDE_FILE

if TYPE_CHECKING:
    from weft.text.sandbox import Limits

TEMPLATE_FILE, OLDER_FILE, KEY = "chat_template.jinja", "chat_template.json", "chat_template"
ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_SOURCE = 100_000
"""Characters of a template; those in use have a third of it at most."""
MAX_REASON = 300

Message = Mapping[str, Any]


class ChatTemplate:
    """A template and the special tokens it may write. Never changes."""

    def __init__(self, source: str, specials: Specials | None = None) -> None:
        # jinja2: only who chats waits for it
        from weft.text.sandbox import compile_template

        if len(source) > MAX_SOURCE:
            raise DataError(
                f"the chat template has {len(source)} characters: at most {MAX_SOURCE} are allowed."
            )
        self.source = source
        self.names = (specials or Specials()).to_file()
        try:
            self.template = compile_template(source)
        except Exception as error:  # whatever a stranger's program makes a parser do
            raise failed(error, "cannot be used") from None

    def render(
        self, messages: Sequence[Message], add_generation_prompt: bool = True, **extra: Any
    ) -> str:
        """The text of a conversation; with `add_generation_prompt`, up to where an answer begins.

        `extra` are further variables that some templates ask for, as plain values.
        """
        from weft.text.sandbox import RefusalError, render

        variables = {
            "tools": None,
            "documents": None,
            **self.names,
            **{name: plain(value, name) for name, value in extra.items()},
            "messages": check_messages(messages),
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return render(self.template, variables, limits_for(variables))
        except RefusalError as error:
            raise UsageError(
                f"the chat template refuses this conversation: {ended(str(error))}"
            ) from None
        except Exception as error:  # whatever a stranger's program may raise
            raise failed(error, "failed") from None


def failed(error: Exception, what: str) -> DataError:
    """One sentence, however long the error is."""
    reason = str(error) or type(error).__name__
    if isinstance(error, RecursionError):
        reason = "it calls itself without end"
    reason = reason if len(reason) <= MAX_REASON else reason[:MAX_REASON] + "..."
    return DataError(f"the chat template {what}: {ended(reason)} Use another template, or none.")


def ended(reason: str) -> str:
    """A reason with one full stop; a library's own message may bring its own, or three."""
    return reason if reason.endswith(("...", "!", "?")) else reason.rstrip(". ") + "."


def limits_for(variables: Mapping[str, Any]) -> Limits:
    """Bounds that grow with the conversation: what is long may become long."""
    from weft.text.sandbox import Limits

    usual = Limits()
    chars = len(json.dumps(variables, ensure_ascii=False))
    count = len(variables["messages"])
    return Limits(
        chars=usual.chars + 4 * chars,
        items=usual.items + 8 * count,
        steps=usual.steps + 2_000 * count + chars // 16,
        seconds=usual.seconds + 0.002 * count + 1e-7 * chars,
    )


def check_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Plain copies of the messages; a UsageError names the first that is none."""
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
    """A copy of plain JSON types, as other objects have methods that no sandbox knows."""
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
        "lists and tables), 32 deep at most."
    )


def find_template(folder: Path) -> str | None:
    """The chat template of a Hugging Face folder; None: it has none.

    A file of its own goes before the config; of several with names, "default" goes before others.
    """
    if (folder / TEMPLATE_FILE).is_file():
        return read_text(folder / TEMPLATE_FILE)
    for path in (folder / OLDER_FILE, folder / SIDE_FILE):
        found = read_settings(path).get(KEY) if path.is_file() else None
        if found:
            return choose(found, path)
    return None


def choose(found: Any, path: Path) -> str:
    """One template of an entry: a text, {name: text}, or [{"name": ..., "template": text}]."""
    if isinstance(found, str):
        return found
    named = found
    if isinstance(found, list):
        entries = [entry for entry in found if isinstance(entry, Mapping)]
        named = {entry.get("name"): entry.get("template") for entry in entries}
    if isinstance(named, Mapping) and named:
        chosen = named.get("default", next(iter(named.values())))
        if isinstance(chosen, str):
            return chosen
    raise DataError(f"{KEY} is neither a template nor a list of named ones.", path)
