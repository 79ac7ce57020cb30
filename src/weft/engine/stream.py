"""A prompt's ids -> new ids, one at a time; ids -> pieces of text, whole characters only.

A character may be spread over several tokens (bytes). Its bytes are held back until it is whole;
bytes that can never become one give U+FFFD, and the text goes on behind them. Differs from decoding
all ids anew at each step, as many do: time stays linear, and one wrong byte spoils one character.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
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
    end_id: int | None,
    sampling: SamplingConfig,
) -> Iterator[int]:
    """The tokens behind a prompt, each as soon as it is chosen; the end token not included."""
    output: list[int] = []
    with torch.inference_mode(), next(model.parameters()).device:
        batch = first_batch(model, [prompt], max_tokens, None)
    while len(output) < max_tokens:
        # not around the loop: a generator would leave the mode switched on between its values
        with torch.inference_mode():
            ids_B = step(model, batch, [prompt], [output], sampling)
        token = int(ids_B[0])
        if token == end_id:
            return
        output.append(token)
        yield token
        batch = replace(batch, ids_BT=ids_B[:, None], lengths_B=None)


def pieces(tokenizer: Tokenizer, ids: Iterable[int]) -> Iterator[str]:
    """Text, as soon as its characters are whole. Special tokens have none."""
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


def special_ids(tokenizer: Tokenizer) -> set[int]:
    added = tokenizer.backend.get_added_tokens_decoder()
    return {index for index, token in added.items() if token.special}
