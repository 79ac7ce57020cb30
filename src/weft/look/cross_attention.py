"""A model, a source and a target -> what each written token looked at in the source.

Attaches from outside: hooks on `decoder.blocks.N.cross.weights`, removed after one pass. Row t has
the weights with which token t of `written` was chosen, so rows are shifted by one against what the
decoder read: <begin> is read, the first token is written.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from weft.core.device import device_of
from weft.core.errors import UsageError
from weft.core.forward_batch import ForwardBatch
from weft.engine.attention import recorded
from weft.models.build import Model
from weft.models.encoder_decoder import EncoderDecoder
from weft.text.spans import Tokens, is_byte
from weft.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class CrossAttention:
    """Weights by layer and head, with the tokens they stand between."""

    read: list[str]
    """S source tokens: whole characters, spaces as they are."""
    written: list[str]
    """T target tokens, the end token included."""
    weights_LHTS: NDArray[np.float32]

    def mean(self) -> NDArray[np.float32]:
        """weights_TS, the mean of all heads of all layers."""
        return self.weights_LHTS.mean(axis=(0, 1))

    def sharpest(self) -> tuple[int, int]:
        """(layer, head) whose rows each look most at a single token, counted from 0."""
        peaks_LH = self.weights_LHTS.max(axis=-1).mean(axis=-1)
        layer, head = np.unravel_index(int(peaks_LH.argmax()), peaks_LH.shape)
        return int(layer), int(head)


@torch.inference_mode()
def cross_attention(
    model: Model, tokenizer: Tokenizer, source: str, target: str, start: int | None = None
) -> CrossAttention:
    """One pass over both texts. The model's mode and hooks are afterwards as they were.

    `start`: the id that the decoder reads first (a checkpoint's use.start); None: the begin token.
    """
    if not isinstance(model, EncoderDecoder):
        raise UsageError(
            f"this model is of kind {model.config.kind}: cross-attention is between an encoder and "
            "a decoder. Use a model of kind encoder-decoder."
        )
    writer = tokenizer.target
    first = writer.id_of("begin") if start is None else start
    read, written = tokenizer.tokens(source), without(first, writer.tokens(target))
    device = device_of(model)
    ids_1S = torch.tensor([read.ids], device=device)
    ids_1T = torch.tensor([[first, *written.ids[:-1]]], device=device)
    was_training = model.training
    model.eval()
    try:
        with recorded(cross_weights(model)) as seen:
            model(ForwardBatch(ids_1T), ForwardBatch(ids_1S))
    finally:
        model.train(was_training)
    weights_LHTS = torch.cat(seen).float().cpu().numpy()
    return CrossAttention(labels(read, source), labels(written, target), weights_LHTS)


def without(first: int, tokens: Tokens) -> Tokens:
    """Tokens without the one that is read before anything is written, where they begin with it."""
    if tokens.ids[:1] != [first]:
        return tokens
    return Tokens(tokens.ids[1:], tokens.pieces[1:], tokens.spans[1:])


def cross_weights(model: EncoderDecoder) -> list[nn.Module]:
    """The places where each decoder layer shows what it looks at."""
    return [block.cross.weights for block in model.decoder.layers if block.cross is not None]


def labels(tokens: Tokens, text: str) -> list[str]:
    """Each token as people read it: a byte is the character it belongs to, with its number."""
    found: list[str] = []
    previous, number = (-1, -1), 0
    for piece, span in zip(tokens.pieces, tokens.spans, strict=True):
        number = number + 1 if span == previous else 1
        previous = span
        found.append(f"{text[slice(*span)]}/{number}" if is_byte(piece) else piece)
    return found
