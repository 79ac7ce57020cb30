"""A prompt's ids -> new ids, one at a time; ids -> pieces of text, whole characters only.

A character may be spread over several tokens (bytes). Its bytes are held back until it is whole;
bytes that can never become one give U+FFFD, and the text goes on behind them. Differs from decoding
all ids anew at each step, as many do: time stays linear, and one wrong byte spoils one character.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

import torch

from weft.models.decoder import Decoder
from weft.models.generate import first_batch, step
from weft.sampling.settings import SamplingConfig
from weft.text.tokenizer import Tokenizer


def stream_ids(
    model: Decoder,
    prompt: list[int],
    max_tokens: int,
    ends: Collection[int],
    sampling: SamplingConfig,
) -> Iterator[int]:
    """The tokens behind a prompt, each as soon as it is chosen; an end token is not included."""
    output: list[int] = []
    with torch.inference_mode(), next(model.parameters()).device:
        batch = first_batch(model, [prompt], max_tokens, None)
    while len(output) < max_tokens:
        # not around the loop: a generator would leave the mode switched on between its values
        with torch.inference_mode():
            ids_B = step(model, batch, [prompt], [output], sampling)
        token = int(ids_B[0])
        if token in ends:
            return
        output.append(token)
        yield token
        batch = replace(batch, ids_BT=ids_B[:, None], lengths_B=None)


def pieces(tokenizer: Tokenizer, ids: Iterable[int]) -> Iterator[str]:
    """Text, as soon as its characters are whole. Special tokens have none. Ids are those of the
    tokenizer's target side, where it has one."""
    tokenizer = tokenizer.target
    special = special_ids(tokenizer)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for token in ids:
        content = b"" if token in special else tokenizer.token_bytes([token])[0]
        text = decoder.decode(content)
        if text:
            yield text
    rest = decoder.decode(b"", final=True)
    if rest:
        yield rest


def until(texts: Iterable[str], stops: Sequence[str]) -> Iterator[str]:
    """The text before the first stop. What may be the beginning of one is held back, so that a stop
    is found across the borders of tokens."""
    held = ""
    for text in texts:
        held += text
        cut = min((held.find(stop) for stop in stops if stop in held), default=-1)
        if cut >= 0:
            if held[:cut]:
                yield held[:cut]
            return
        keep = max((overlap(held, stop) for stop in stops), default=0)
        if len(held) > keep:
            yield held[: len(held) - keep]
            held = held[len(held) - keep :]
    if held:
        yield held


def overlap(text: str, stop: str) -> int:
    """How many characters at the end of the text are the beginning of the stop."""
    most = min(len(text), len(stop) - 1)
    return next((n for n in range(most, 0, -1) if stop.startswith(text[-n:])), 0)


def special_ids(tokenizer: Tokenizer) -> set[int]:
    added = tokenizer.backend.get_added_tokens_decoder()
    return {index for index, token in added.items() if token.special}
