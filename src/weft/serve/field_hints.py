"""What an unknown field was probably meant to be: the same field of another server or route, or the
known field with the most similar name.

field_hint("guided_json", ["structured_outputs", ...])     structured_outputs.json
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

from weft.core.registry import nearest

MIN_RATIO = 0.6
"""Of difflib: foo and tools have 0.5, temperatur and temperature 0.95."""

LENGTHS = ("max_completion_tokens", "max_output_tokens", "options.num_predict", "max_tokens")
SCHEMAS = ("response_format", "text.format", "output_config.format", "format")
ELSEWHERE: dict[str, tuple[str, ...]] = {
    "guided_json": ("structured_outputs.json",),  # of vLLM until 0.11
    "guided_regex": ("structured_outputs.regex",),
    "guided_choice": ("structured_outputs.choice",),
    "guided_grammar": ("structured_outputs.grammar",),
    "regex": ("structured_outputs.regex",),  # of SGLang
    "ebnf": ("structured_outputs.grammar",),
    "grammar": ("structured_outputs.grammar",),  # of llama-server
    "json_schema": ("structured_outputs.json", *SCHEMAS),
    "response_format": SCHEMAS,
    "text": ("response_format.json_schema",),
    "max_tokens": LENGTHS,
    "max_completion_tokens": LENGTHS,
    "max_output_tokens": LENGTHS,
    "max_new_tokens": LENGTHS,
    "n_predict": LENGTHS,
    "num_predict": LENGTHS,
    "repeat_penalty": ("repetition_penalty",),
    "stop": ("stop_sequences",),
    "stop_sequences": ("stop",),
    "messages": ("input", "prompt"),
    "prompt": ("messages", "input"),
    "input": ("messages", "prompt"),
    "system": ("instructions",),
    "instructions": ("system",),
}
"""Field of another server or route -> where it is here; the first one whose field is known."""


def field_hint(name: str, known: Sequence[str]) -> str | None:
    """The field that was probably meant; None if no name is similar."""
    for place in ELSEWHERE.get(name, ()):
        if place.partition(".")[0] in known:
            return place
    guess = nearest(name, known)
    is_similar = guess and SequenceMatcher(None, name.lower(), guess).ratio() >= MIN_RATIO
    return guess if is_similar else None
