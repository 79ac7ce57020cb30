"""The input of a trace: texts or ids -> ids of both sides, with tokens and words.

A decoder reads its begin token, if it has one, and the text; an encoder the text with its special
tokens; the decoder of an encoder-decoder its start token and the target text without an end token,
so that the last position predicts what follows.

Ids are the input of a stack with special tokens, such as a conversation in a chat template. Their
text is decoded from their bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft.core.errors import UsageError
from weft.look.trace_data import TraceToken, Word
from weft.look.words import special_ids, trace_tokens
from weft.models.build import AnyModel
from weft.models.config import ModelConfig
from weft.text.tokenizer import Offset, Tokenizer, Tokens

TASKS = {"encoder-decoder": ("translate",), "decoder": ("lm",), "encoder": ("encode", "mlm")}
"""The tasks of each kind of model; the first is the default."""
TextOrIds = str | Sequence[int]
MAX_TOKENS = 4096


@dataclass(frozen=True)
class TraceInput:
    """The tokens of both sides."""

    text: str
    target: str | None
    task: str
    tokens: Mapping[str, tuple[TraceToken, ...]]
    words: Mapping[str, tuple[Word, ...]]
    notes: tuple[str, ...] = ()

    def ids(self, side: str) -> list[int]:
        return [token.id for token in self.tokens[side]]

    @property
    def num_tokens(self) -> int:
        """Of the longer side."""
        return max(map(len, self.tokens.values()))


def trace_input(
    model: AnyModel,
    tokenizer: Tokenizer,
    text: TextOrIds,
    target: TextOrIds | None = None,
    task: str | None = None,
    start: int | None = None,
    window: tuple[int, int] | None = None,
) -> TraceInput:
    """The input of a trace. `start`: the id that the decoder of an encoder-decoder reads first;
    None: the begin token. `window`: tokens a to b of the text alone, as if they were all of it."""
    config = model.config
    task = check_task(config, task, target)
    shown, tokens = source_tokens(config, tokenizer, text)
    notes: tuple[str, ...] = ()
    if window is not None:
        tokens, notes = windowed(tokens, window)
    check_length(len(tokens.ids), "the text")
    check_ids(tokens.ids, vocab_size_of_text(config), "the text")
    sides = {"src": trace_tokens(tokenizer, tokens, shown)}
    shown_target = None
    if config.kind == "encoder-decoder":
        shown_target, target_tokens = decoder_tokens(tokenizer.target, target or "", start)
        check_length(len(target_tokens.ids), "the target")
        check_ids(target_tokens.ids, config.vocab_size, "the target")
        sides["tgt"] = trace_tokens(tokenizer.target, target_tokens, shown_target)
    return TraceInput(
        shown,
        None if target is None else shown_target,
        task,
        {side: tokens for side, (tokens, _) in sides.items()},
        {side: words for side, (_, words) in sides.items()},
        notes,
    )


def check_task(config: ModelConfig, task: str | None, target: object) -> str:
    """The task; a UsageError if this kind of model does not have it."""
    tasks = TASKS[config.kind]
    if task is not None and task not in tasks:
        raise UsageError(
            f"task is {task}, but this model is of kind {config.kind}: use {' or '.join(tasks)}."
        )
    if target is not None and config.kind != "encoder-decoder":
        raise UsageError(
            f"there is a target, but this model is of kind {config.kind}: only an encoder-decoder "
            "has one. Leave it out."
        )
    return task or tasks[0]


def source_tokens(config: ModelConfig, tokenizer: Tokenizer, text: TextOrIds) -> tuple[str, Tokens]:
    """The text and the tokens that the first stack reads."""
    if not isinstance(text, str):
        text, tokens = tokens_of_ids(tokenizer, text)
    elif config.kind != "decoder":
        tokens = tokenizer.tokens(text)
    else:
        first = tokenizer.frame[0]
        body = tokenizer.tokens(text, add_special=False)
        tokens = with_first(tokenizer, first, body)
    if not tokens.ids:
        raise UsageError("the text has no tokens: it is empty. Give a text.")
    return text, tokens


def decoder_tokens(
    tokenizer: Tokenizer, target: TextOrIds, start: int | None
) -> tuple[str, Tokens]:
    """The text and the tokens that the decoder of an encoder-decoder reads."""
    if not isinstance(target, str):
        return tokens_of_ids(tokenizer, target)
    first = tokenizer.id_of("begin") if start is None else start
    body = tokenizer.tokens(target, add_special=False)
    return target, with_first(tokenizer, [first], body)


def tokens_of_ids(tokenizer: Tokenizer, ids: Sequence[int]) -> tuple[str, Tokens]:
    """The text of the bytes of ids, and the tokens with their places in it. Special tokens are not
    in the text; a byte that is no part of a character is U+FFFD there."""
    check_ids(ids, tokenizer.vocab_size, "the list of ids")
    special = special_ids(tokenizer)
    all_bytes = tokenizer.token_bytes(ids)
    parts = [b"" if i in special else data for i, data in zip(ids, all_bytes, strict=True)]
    text, char_of_byte = decoded(b"".join(parts))
    offsets: list[Offset] = []
    position = 0
    for part in parts:
        end = position + len(part)
        last = char_of_byte[end - 1] + 1 if part else char_of_byte[position]
        offsets.append((char_of_byte[position], last))
        position = end
    return text, Tokens(list(ids), tokenizer.pieces(ids), offsets)


def decoded(data: bytes) -> tuple[str, list[int]]:
    """The text, and for each byte and the end the number of its character."""
    chars: list[str] = []
    char_of_byte: list[int] = []
    position = 0
    while position < len(data):
        size, char = 1, "\ufffd"
        for length in range(1, 5):
            try:
                size, char = length, data[position : position + length].decode()
                break
            except UnicodeDecodeError:
                continue
        char_of_byte += [len(chars)] * size
        chars.append(char)
        position += size
    return "".join(chars), [*char_of_byte, len(chars)]


def check_ids(ids: Sequence[int], vocab_size: int, what: str) -> None:
    """Raise a UsageError for ids that the model does not have."""
    wrong = [index for index in ids if not 0 <= index < vocab_size]
    if wrong:
        raise UsageError(
            f"{what} has the token {wrong[0]}, but ids of this model go from 0 to "
            f"{vocab_size - 1}. Use the model's own tokenizer."
        )


def with_first(tokenizer: Tokenizer, ids: list[int], body: Tokens) -> Tokens:
    return Tokens(
        [*ids, *body.ids],
        [*tokenizer.pieces(ids), *body.pieces],
        [*[(0, 0)] * len(ids), *body.offsets],
    )


def windowed(tokens: Tokens, window: tuple[int, int]) -> tuple[Tokens, tuple[str, ...]]:
    """Some of the tokens, and the note about it."""
    a, b = window
    if not 0 <= a < b <= len(tokens.ids):
        raise UsageError(
            f"window is {a}:{b}, but the text has {len(tokens.ids)} tokens: use a:b with "
            f"0 <= a < b <= {len(tokens.ids)}."
        )
    note = f"tokens {a} to {b - 1} of {len(tokens.ids)}, read as if they were the whole text"
    part = slice(a, b)
    return Tokens(tokens.ids[part], tokens.pieces[part], tokens.offsets[part]), (note,)


def check_length(num_tokens: int, what: str) -> None:
    if num_tokens > MAX_TOKENS:
        raise UsageError(
            f"{what} has {num_tokens:,} tokens: a trace has at most {MAX_TOKENS:,}. Use "
            f"--window a:b, such as --window {num_tokens - MAX_TOKENS}:{num_tokens}, for some of "
            "them."
        )


def vocab_size_of_text(config: ModelConfig) -> int:
    """Ids that the first stack knows."""
    return config.vocab_size_of("decoder" if config.kind == "decoder" else "encoder")
