"""`examples.json` of a model folder: validation inputs to try the model with, written by training.

    {"examples": [{"text": "Two dogs are playing.", "target": "Zwei Hunde spielen."}]}

`target` is the reference translation, in translation models. A file that cannot be read is logged
and ignored: the model works without it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.checkpoint.folder_files import write_json
from weft.core.config import read_settings
from weft.core.errors import WeftError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExampleInput:
    """A text of the validation data."""

    text: str
    target: str | None = None
    """Its translation there."""

    def to_dict(self) -> dict[str, str]:
        return {"text": self.text} | ({} if self.target is None else {"target": self.target})


def write_examples(path: Path, examples: Sequence[ExampleInput]) -> None:
    write_json(path, {"examples": [one.to_dict() for one in examples]})


def read_examples(path: Path) -> tuple[ExampleInput, ...]:
    """The examples of a file; none if there is no such file, or it has another form."""
    if not path.is_file():
        return ()
    try:
        entries = read_settings(path).get("examples")
        if isinstance(entries, list) and all(map(is_example, entries)):
            return tuple(ExampleInput(one["text"], one.get("target")) for one in entries)
        problem = "has no list of examples with texts"
    except WeftError as error:
        problem = str(error)
    log.warning("examples=ignored file=%s problem=%s", path.name, problem)
    return ()


def is_example(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("text"), str)
        and isinstance(entry.get("target"), str | None)
    )
