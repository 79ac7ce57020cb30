"""Choose the next token of many sequences: logits_BV and a Row for each -> ids_B.

A row's token depends on its logits and its Row alone, bit for bit, whatever else is in the batch:
plain greedy rows share one argmax, in which nothing is added up, and every other row is computed by
itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from weft.core.shapes import check_shapes
from weft.sampling import ADJUST, NARROW, apply
from weft.sampling.base import Row
from weft.sampling.draw import NO_TOKEN, draw_one, greedy, uniform


def choose(logits_BV: Tensor, rows: Sequence[Row]) -> Tensor:
    """One id a row. NO_TOKEN (-1) where a grammar and bans together leave none: that request has to
    end with an error, and the others go on."""
    check_shapes(logits_BV=logits_BV, B=len(rows))
    if all(row.is_plain for row in rows):
        return greedy(logits_BV)
    plain = [index for index, row in enumerate(rows) if row.is_plain]
    ids_B = torch.empty(len(rows), dtype=torch.long, device=logits_BV.device)
    if plain:
        ids_B[plain] = greedy(logits_BV[plain])
    for index, row in enumerate(rows):
        if not row.is_plain:
            ids_B[index] = choose_one(logits_BV[index], row)
    return ids_B


def choose_one(logits_V: Tensor, row: Row) -> int:
    """The id of one row."""
    logits_V = apply(ADJUST, logits_V.float(), row)
    if not logits_V.max() > float("-inf"):
        return NO_TOKEN
    if row.config.is_greedy:
        return int(logits_V.argmax())
    return draw_one(apply(NARROW, logits_V, row), uniform(row.config.seed, row.position))
