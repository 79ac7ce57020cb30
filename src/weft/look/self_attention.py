"""A model and a text -> where each of its tokens looks among the others, by layer and head.

Attaches from outside, as cross_attention.py does: hooks on `...blocks.N.attention.weights`, removed
after one pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from weft.core.device import device_of
from weft.core.errors import UsageError
from weft.core.forward_batch import ForwardBatch
from weft.engine.attention import recorded
from weft.look.cross_attention import labels
from weft.models.build import Model
from weft.models.decoder import Decoder
from weft.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class SelfAttention:
    """Weights by layer and head; row t of weights_LHTS is what token t looks at."""

    tokens: list[str]
    spans: list[tuple[int, int]]
    """The characters of the text that each token covers."""
    weights_LHTS: NDArray[np.float32]

    def share(self, text: str, seen_from: str, what: str) -> NDArray[np.float32]:
        """weights_LH: the part of the attention of one word that falls on another, the mean over
        the tokens that spell the first. Each word must stand in the text once."""
        rows, columns = (self.places(text, word) for word in (seen_from, what))
        return self.weights_LHTS[:, :, rows][..., columns].sum(-1).mean(-1)

    def places(self, text: str, word: str) -> list[int]:
        """The tokens that share a character with a word."""
        if text.count(word) != 1:
            raise UsageError(
                f"'{word}' stands {text.count(word)} times in the text: once is needed."
            )
        start = text.index(word)
        end = start + len(word)
        return [t for t, (a, b) in enumerate(self.spans) if a < end and b > start and b > a]


@torch.inference_mode()
def self_attention(model: Model, tokenizer: Tokenizer, text: str) -> SelfAttention:
    """One pass over a text: through the encoder where there is one. Model and hooks stay."""
    stack = model.decoder if isinstance(model, Decoder) else model.encoder
    tokens = tokenizer.tokens(text)
    ids_1T = torch.tensor([tokens.ids], device=device_of(model))
    was_training = model.training
    model.eval()
    try:
        with recorded([block.attention.weights for block in stack.layers]) as seen:
            stack(ForwardBatch(ids_1T))
    finally:
        model.train(was_training)
    weights_LHTS = torch.cat(seen).float().cpu().numpy()
    return SelfAttention(labels(tokens, text), list(tokens.spans), weights_LHTS)
