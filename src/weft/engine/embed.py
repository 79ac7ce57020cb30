"""Texts -> one vector of length 1 each: the mean of the vectors of a text's tokens, or the first or
last of them.

An encoder is read as it is; of an encoder-decoder, the encoder; of a decoder, what its head reads.
A text is cut at the model's length, or at the shorter one that the model was made for (MiniLM: 256
of 512), and the tokenizer's report counts it. Texts run packed through the engine, so that a vector
does not depend on its company.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.core.errors import UsageError
from weft.engine.desk import Desk
from weft.text.tokenizer import Tokenizer

Pool = Callable[[Tensor, Tensor], Tensor]
"""x_BTD and lengths_B -> vectors_BD."""


def embed_texts(
    desk: Desk,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    pooling: str,
    progress: Callable[[int], None],
) -> Tensor:
    """vectors_BD, in the order of the texts."""
    if pooling not in POOLINGS:
        raise UsageError(
            f"the model makes its vectors by '{pooling}': Weft has {', '.join(POOLINGS)}. "
            "Use a model that was made with one of them."
        )
    pool, config = POOLINGS[pooling], desk.engine.model.config
    limit = min(config.max_cached_len, tokenizer.max_len or config.max_len)
    rows = tokenizer.encode_batch(texts, max_len=limit)
    names = [desk.open_text(row or [tokenizer.pad_id or 0]) for row in rows]
    vectors_BD = torch.zeros(len(rows), config.width)
    for place, update in desk.results(names):
        assert update.vectors_TD is not None, f"{names[place]} was not embedded"
        x_BTD = update.vectors_TD.float()[None]
        lengths_B = torch.tensor([x_BTD.shape[1]], device=x_BTD.device)
        vectors_BD[place] = F.normalize(pool(x_BTD, lengths_B)[0], dim=-1).cpu()
        progress(1)
    return vectors_BD


def mean(x_BTD: Tensor, lengths_B: Tensor) -> Tensor:
    is_real_BT = torch.arange(x_BTD.shape[1], device=x_BTD.device) < lengths_B[:, None]
    return (x_BTD * is_real_BT[..., None]).sum(1) / lengths_B[:, None]


def first(x_BTD: Tensor, lengths_B: Tensor) -> Tensor:
    return x_BTD[:, 0]


def last(x_BTD: Tensor, lengths_B: Tensor) -> Tensor:
    return x_BTD[torch.arange(len(x_BTD), device=x_BTD.device), lengths_B - 1]


POOLINGS: dict[str, Pool] = {"mean": mean, "first": first, "last": last}
