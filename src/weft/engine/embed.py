"""Texts -> one vector of length 1 each: the mean of the vectors of a text's tokens, or the first.

An encoder is read as it is; of an encoder-decoder, the encoder; of a decoder, what its head reads.
A text that is longer than the model is cut, which the tokenizer's report counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.core.batch import ForwardBatch
from weft.models.build import Model
from weft.models.decoder import Decoder
from weft.text.batches import batches
from weft.text.collate import collate
from weft.text.tokenizer import Tokenizer


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
    rows = tokenizer.encode_batch(texts, max_len=model.config.max_len)
    rows = [row or [tokenizer.pad_id or 0] for row in rows]
    vectors_BD = torch.zeros(len(rows), model.config.width)
    for batch in batches([len(row) for row in rows], batch_tokens) if rows else []:
        vectors_BD[batch] = pooled(model, [rows[row] for row in batch], pooling).cpu()
        progress(len(batch))
    return vectors_BD


def pooled(model: Model, rows: Sequence[Sequence[int]], pooling: str) -> Tensor:
    """The vectors of one batch."""
    device = next(model.parameters()).device
    ids_BT, lengths_B = (tensor.to(device) for tensor in collate(rows))
    stack = model.decoder if isinstance(model, Decoder) else model.encoder
    x_BTD = stack(ForwardBatch(ids_BT, lengths_B=lengths_B)).float()
    if pooling == "first":
        return F.normalize(x_BTD[:, 0], dim=-1)
    is_real_BT = torch.arange(ids_BT.shape[1], device=device) < lengths_B[:, None]
    mean_BD = (x_BTD * is_real_BT[..., None]).sum(1) / lengths_B[:, None]
    return F.normalize(mean_BD, dim=-1)
