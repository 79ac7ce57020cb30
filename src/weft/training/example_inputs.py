"""Validation data -> five evenly spaced example inputs, which are stored in the model folder.

    pair_examples(valid_pairs)                 of a translation run
    text_examples(token_file, tokenizer)       of a text run: beginnings of lines

Inputs that are too long to read at a glance are left out while there are others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from weft.checkpoint.examples import ExampleInput
from weft.text.tokenizer import Tokenizer
from weft.training.data.files import Pair
from weft.training.data.tokens import TokenFile

NUM_EXAMPLES = 5
MAX_CHARACTERS = 120
READ_TOKENS = 400
"""Decoded at each place of a text; enough for some lines."""

T = TypeVar("T")


def pair_examples(pairs: Sequence[Pair]) -> tuple[ExampleInput, ...]:
    """Examples with their reference translations."""
    usable = [pair for pair in dict.fromkeys(pairs) if pair[0].strip()]
    short = [pair for pair in usable if max(map(len, pair)) <= MAX_CHARACTERS]
    return tuple(ExampleInput(*pair) for pair in spread(short or usable, NUM_EXAMPLES))


def text_examples(file: TokenFile, tokenizer: Tokenizer) -> tuple[ExampleInput, ...]:
    """Examples that a language model can continue: the beginnings of documents, or of lines if
    there are few documents."""
    num_documents = len(file.starts) - 1
    if num_documents >= NUM_EXAMPLES:
        documents = spread(range(num_documents), NUM_EXAMPLES)
        spans = [(int(file.starts[one]), int(file.starts[one + 1])) for one in documents]
    else:
        last = max(0, len(file.ids) - READ_TOKENS)
        places = [last * place // NUM_EXAMPLES for place in range(NUM_EXAMPLES)]
        spans = [(place, len(file.ids)) for place in places]
    begins = {0, *map(int, file.starts)}
    texts = [first_line(decoded(file, span, tokenizer), span[0] in begins) for span in spans]
    return tuple(ExampleInput(text) for text in dict.fromkeys(filter(None, texts)))


def decoded(file: TokenFile, span: tuple[int, int], tokenizer: Tokenizer) -> str:
    """The text of the first tokens of a span."""
    begin, end = span
    return tokenizer.decode([int(one) for one in file.ids[begin : min(end, begin + READ_TOKENS)]])


def first_line(text: str, is_whole: bool) -> str:
    """The beginning of the first line that is not blank; `is_whole`: the text begins with one."""
    first, *rest = text.split("\n")
    lines = [first, *rest] if is_whole else [*rest, first]
    line = next((line.strip() for line in lines if line.strip()), "")
    if len(line) <= MAX_CHARACTERS:
        return line
    words = line[:MAX_CHARACTERS].rpartition(" ")[0]
    return words or line[:MAX_CHARACTERS]


def spread(items: Sequence[T], number: int) -> list[T]:
    """Up to `number` of the items, evenly spaced."""
    if len(items) <= number:
        return list(items)
    return [items[len(items) * place // number] for place in range(number)]
