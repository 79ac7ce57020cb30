"""What may come next at the places of a pass where a token is chosen: logits, or only the best ids.

Logits of a whole vocabulary are much to write and to read again; a search asks for a few of each
row, which the head can find without them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.native.kernels import TopK, log_sum_exp, top_k
from weft.nn.lm_head import LMHead
from weft.nn.packed_modules import PackedLMHead

Banned = Mapping[tuple[int, ...], Sequence[int]]
"""Ids that are never written, and the rows in which they are not."""


class Chances:
    """N places; x_ND is what the head reads there, `made` their logits where there are any yet."""

    def __init__(
        self,
        head: LMHead,
        x_ND: Tensor | None,
        made: Tensor | None = None,
        is_hooked: bool = False,
    ) -> None:
        """`is_hooked`: hooks of the head have to see its logits."""
        self.head, self.known, self.made, self.is_hooked = head, x_ND, made, is_hooked

    @property
    def x_ND(self) -> Tensor:
        assert self.known is not None, "chances of nothing"
        return self.known

    def __len__(self) -> int:
        return len(self.x_ND)

    @property
    @torch.inference_mode()
    def logits_NV(self) -> Tensor:
        """In float32 at least. Once they are made, everything else is read from them."""
        if self.made is None:
            made: Tensor = self.head(self.x_ND[None])[0]
            self.made = made.to(torch.promote_types(made.dtype, torch.float))
        return self.made

    def of(self, rows: Sequence[int]) -> Chances:
        """Those of some places; usually all of them, and then nothing is copied."""
        if len(rows) == len(self):
            return self
        made = None if self.made is None else self.made[rows]
        return Chances(self.head, self.x_ND[rows], made, self.is_hooked)

    @torch.inference_mode()
    def logits_of(self, token: int, rows: Sequence[int]) -> Any:
        """Of one token in some rows, float64 in numpy; to the last bit what they are among all."""
        if self.made is not None:
            logits_N = self.made[rows, token]
        else:
            logits_N = self.head.logit_of(self.x_ND[rows], token)
        return logits_N.cpu().double().numpy()

    @torch.inference_mode()
    def best(self, count: int, banned: Banned) -> tuple[Any, Any, Any]:
        """Log-probabilities logp_NK and ids_NK of the best tokens of each row that are not banned,
        and the logarithm of the sum of all exps, sums_N; in numpy."""
        banned = {ids: rows for ids, rows in banned.items() if rows}
        everywhere = [ids for ids, rows in banned.items() if len(rows) == len(self)]
        found = None
        if len(everywhere) == len(banned) and self.made is None:
            found = self.head_best(count, [one for ids in everywhere for one in ids])
        parts = found or self.best_logits(count, banned)
        best_NK, ids_NK, sums_N = (part.cpu().numpy() for part in parts)
        return best_NK.astype(np.float64) - sums_N[:, None], ids_NK, sums_N

    def head_best(self, count: int, banned: Sequence[int]) -> TopK | None:
        """Without the logits; None where that cannot be."""
        head = self.head
        if self.is_hooked or not isinstance(head, PackedLMHead):
            return None
        return head.top_k(self.x_ND, count, banned)

    def best_logits(self, count: int, banned: Banned) -> TopK:
        """The same from the logits."""
        logits_NV = self.logits_NV
        sums_N = log_sum_exp(logits_NV)
        if banned:
            logits_NV = logits_NV.clone()
        for ids, rows in banned.items():
            logits_NV[np.ix_(rows, ids)] = -inf
        return TopK(*top_k(logits_NV, count), sums_N)


class ComingChances(Chances):
    """Those behind a pass that has not been run yet. Where only the best are asked for, `quick`
    runs it and the head in one call; for anything else `run` runs it first."""

    def __init__(
        self,
        head: LMHead,
        number: int,
        run: Callable[[], Tensor],
        quick: Callable[[int, Sequence[int]], TopK],
    ) -> None:
        super().__init__(head, None)
        self.number, self.run, self.quick = number, run, quick

    @property
    def x_ND(self) -> Tensor:
        if self.known is None:
            self.known = self.run()
        return self.known

    def __len__(self) -> int:
        return self.number

    def head_best(self, count: int, banned: Sequence[int]) -> TopK | None:
        return self.quick(count, banned) if self.known is None else super().head_best(count, banned)
