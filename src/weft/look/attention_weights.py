"""Attention weights of one forward pass: a model and texts -> weights by layer and head.

    cross_attention   which source tokens each target token attends to
    self_attention    which tokens of a text each of its tokens attends to

Hooks are registered on `blocks.N.cross.weights` and `blocks.N.attention.weights` and removed after
the pass; the model's mode is restored.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from weft.core.device import device_of
from weft.core.errors import UsageError
from weft.core.forward_batch import ForwardBatch
from weft.engine.attention_rows import recorded
from weft.models.build import AnyModel
from weft.models.transformer import Decoder, EncoderDecoder
from weft.text.tokenizer import Tokenizer, Tokens, is_byte


@dataclass(frozen=True)
class CrossAttention:
    """Weights by layer and head, with the tokens of both texts. Row t has the weights with which
    target token t was predicted: rows are shifted by one against the decoder's input, which begins
    with <begin>."""

    source_tokens: list[str]
    """S source tokens: whole characters, spaces as they are."""
    target_tokens: list[str]
    """T target tokens, the end token included."""
    weights_LHTS: NDArray[np.float32]

    def mean(self) -> NDArray[np.float32]:
        """weights_TS, the mean of all heads of all layers."""
        return self.weights_LHTS.mean(axis=(0, 1))

    def sharpest(self) -> tuple[int, int]:
        """(layer, head) with the largest mean of the rows' maxima, counted from 0."""
        peaks_LH = self.weights_LHTS.max(axis=-1).mean(axis=-1)
        layer, head = np.unravel_index(int(peaks_LH.argmax()), peaks_LH.shape)
        return int(layer), int(head)


@dataclass(frozen=True)
class SelfAttention:
    """Weights by layer and head; row t of weights_LHTS is what token t attends to."""

    tokens: list[str]
    spans: list[tuple[int, int]]
    """The characters of the text that each token covers."""
    weights_LHTS: NDArray[np.float32]

    def share(self, text: str, query: str, key: str) -> NDArray[np.float32]:
        """weights_LH: the attention weight of one word on another, summed over the tokens of the
        second and averaged over those of the first. Each word must occur once in the text."""
        rows, columns = (self.token_indices(text, word) for word in (query, key))
        return self.weights_LHTS[:, :, rows][..., columns].sum(-1).mean(-1)

    def token_indices(self, text: str, word: str) -> list[int]:
        """The tokens that share a character with a word."""
        if text.count(word) != 1:
            raise UsageError(
                f"'{word}' occurs {text.count(word)} times in the text: it must occur once. "
                "Use another word or text."
            )
        start = text.index(word)
        end = start + len(word)
        return [t for t, (a, b) in enumerate(self.spans) if a < end and b > start and b > a]


@torch.inference_mode()
def cross_attention(
    model: AnyModel, tokenizer: Tokenizer, source: str, target: str, start: int | None = None
) -> CrossAttention:
    """Weights of one pass over both texts.

    `start`: the id that the decoder reads first (decoder_start_token_id); None: the begin token.
    """
    if not isinstance(model, EncoderDecoder):
        raise UsageError(
            f"this model is of kind {model.config.kind}: cross-attention is between an encoder and "
            "a decoder. Use a model of kind encoder-decoder."
        )
    target_tokenizer = tokenizer.target
    first = target_tokenizer.id_of("begin") if start is None else start
    source_tokens = tokenizer.tokens(source)
    target_tokens = without_first(first, target_tokenizer.tokens(target))
    ids_1S = torch.tensor([source_tokens.ids], device=device_of(model))
    ids_1T = torch.tensor([[first, *target_tokens.ids[:-1]]], device=device_of(model))
    modules = [block.cross.weights for block in model.decoder.layers if block.cross is not None]
    with eval_mode(model), recorded(modules) as weights:
        model(ForwardBatch(ids_1T), ForwardBatch(ids_1S))
    weights_LHTS = torch.cat(weights).float().cpu().numpy()
    return CrossAttention(
        labels(source_tokens, source), labels(target_tokens, target), weights_LHTS
    )


@torch.inference_mode()
def self_attention(model: AnyModel, tokenizer: Tokenizer, text: str) -> SelfAttention:
    """Weights of one pass over a text, through the encoder if there is one."""
    stack = model.decoder if isinstance(model, Decoder) else model.encoder
    tokens = tokenizer.tokens(text)
    ids_1T = torch.tensor([tokens.ids], device=device_of(model))
    with eval_mode(model), recorded([b.attention.weights for b in stack.layers]) as weights:
        stack(ForwardBatch(ids_1T))
    weights_LHTS = torch.cat(weights).float().cpu().numpy()
    return SelfAttention(labels(tokens, text), list(tokens.offsets), weights_LHTS)


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside, the model's own mode afterwards."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def without_first(first: int, tokens: Tokens) -> Tokens:
    """Tokens without a leading `first`, which the decoder reads before it predicts."""
    if tokens.ids[:1] != [first]:
        return tokens
    return Tokens(tokens.ids[1:], tokens.pieces[1:], tokens.offsets[1:])


def labels(tokens: Tokens, text: str) -> list[str]:
    """Each token in readable form: a byte is the character it belongs to, with its number."""
    result: list[str] = []
    previous, number = (-1, -1), 0
    for piece, span in zip(tokens.pieces, tokens.offsets, strict=True):
        number = number + 1 if span == previous else 1
        previous = span
        result.append(f"{text[slice(*span)]}/{number}" if is_byte(piece) else piece)
    return result
