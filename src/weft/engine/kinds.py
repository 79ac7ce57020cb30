"""What a kind of model can do: a kind and a task -> nothing, or a UsageError that names the kind,
what the task needs, and what this kind does instead.

It reads no weights, so that the wrong kind is refused before they are loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from weft.core.errors import UsageError

Task = Literal["translate", "generate", "chat", "perplexity", "embed"]

PAIR = ("encoder-decoder", "an encoder-decoder, which reads a source")
WRITER = ("decoder", "a decoder, which goes on from the text before")

NEEDS: dict[Task, tuple[str, str]] = {
    "translate": PAIR,
    "generate": WRITER,
    "chat": WRITER,
    "perplexity": WRITER,
}
"""The kind that a task needs, and in words. What is not here, every kind can do."""

INSTEAD = {
    "encoder-decoder": "`translate` is what this one does.",
    "decoder": "`generate` continues a text.",
    "encoder": "`embed` gives a vector for each text.",
}


def refuse_kind(kind: str, task: Task) -> None:
    """A UsageError if models of this kind cannot do the task."""
    needed, words = NEEDS.get(task, (kind, ""))
    if kind != needed:
        raise UsageError(f"this model is of kind {kind}: {task} needs {words}. {INSTEAD[kind]}")


def refuse_one_text(texts: Sequence[str], name: str = "texts") -> None:
    """A str is a sequence of str too: each of its characters would be taken for a text."""
    if isinstance(texts, str):
        raise UsageError(f"{name} is one str: give a list of them. Use [text] for one.")


def refuse_team(has_team: bool) -> None:
    """Texts are drawn by one process."""
    if has_team:
        raise UsageError(
            "a team was given and translations are to be drawn: it searches only. Leave one out."
        )
