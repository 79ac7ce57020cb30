"""Texts -> one vector of length 1 each: the mean of the vectors of a text's tokens, or the first or
last of them.

An encoder is read as it is; of an encoder-decoder, the encoder; of a decoder, what its head reads.
A text is cut at the model's length, or at the shorter one that the model was made for (MiniLM: 256
of 512), and the tokenizer's report counts it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.core.batch import ForwardBatch
from weft.core.choices import pick
from weft.models.build import Model
from weft.models.decoder import Decoder
from weft.text.batches import batches
from weft.text.collate import collate
from weft.text.tokenizer import Tokenizer

Pool = Callable[[Tensor, Tensor], Tensor]
"""x_BTD and lengths_B -> vectors_BD."""


@torch.inference_mode()
def embed_texts(
    model: Model,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    pooling: str,
    batch_tokens: int,
    progress: Callable[[int], None],
) -> Tensor:
    """vectors_BD, in the order of the texts."""
    pool = pick(POOLINGS, pooling, "pooling")
    longest = model.config.max_len
    limit = min(longest, tokenizer.max_len or longest)
    rows = tokenizer.encode_batch(texts, max_len=limit)
    rows = [row or [tokenizer.pad_id or 0] for row in rows]
    vectors_BD = torch.zeros(len(rows), model.config.width)
    for batch in batches([len(row) for row in rows], batch_tokens) if rows else []:
        vectors_BD[batch] = pooled(model, [rows[row] for row in batch], pool).cpu()
        progress(len(batch))
    return vectors_BD


def pooled(model: Model, rows: Sequence[Sequence[int]], pool: Pool) -> Tensor:
    """The vectors of one batch."""
    device = next(model.parameters()).device
    ids_BT, lengths_B = (tensor.to(device) for tensor in collate(rows))
    stack = model.decoder if isinstance(model, Decoder) else model.encoder
    x_BTD = stack(ForwardBatch(ids_BT, lengths_B=lengths_B)).float()
    return F.normalize(pool(x_BTD, lengths_B), dim=-1)


def mean(x_BTD: Tensor, lengths_B: Tensor) -> Tensor:
    is_real_BT = torch.arange(x_BTD.shape[1], device=x_BTD.device) < lengths_B[:, None]
    return (x_BTD * is_real_BT[..., None]).sum(1) / lengths_B[:, None]


def first(x_BTD: Tensor, lengths_B: Tensor) -> Tensor:
    return x_BTD[:, 0]


def last(x_BTD: Tensor, lengths_B: Tensor) -> Tensor:
    return x_BTD[torch.arange(len(x_BTD), device=x_BTD.device), lengths_B - 1]


POOLINGS: dict[str, Pool] = {"mean": mean, "first": first, "last": last}
