"""Next-token logits of the sampled positions of a forward pass, computed when they are needed.

Sampling reads the logits. Beam search and greedy search ask only for the top k of each row, which
the LM head computes without materializing the logits: writing and reading a whole vocabulary per
row takes longer than the product itself for a small model. Both ways give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.native.kernels import TopK, log_sum_exp, top_k
from weft.nn.lm_head import LMHead
from weft.nn.packed_modules import PackedLMHead

Banned = Mapping[tuple[int, ...], Sequence[int]]
"""Banned ids -> the rows in which they are banned."""
TopLogprobs = tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]
"""Log-probabilities logp_NK, ids_NK and the log-sum-exp of each row, lse_N."""


HIDDEN_NOT_FINITE = (
    "the model's hidden states are not finite (NaN or infinity): its weights may contain NaN or "
    "infinity. Use an earlier checkpoint."
)


def not_finite_error(token: int) -> str:
    """The error message of a request with logits that are not finite. `token`: number of the output
    token, from 1."""
    return (
        f"the model's logits are not finite (NaN or infinity) at token {token} of the output: its "
        "weights may contain NaN or infinity. Use an earlier checkpoint."
    )


class NextTokenLogits:
    """Hidden states x_ND of N positions, and their logits, computed when first used."""

    def __init__(
        self,
        head: LMHead,
        x_ND: Tensor | None,
        logits_NV: Tensor | None = None,
        is_hooked: bool = False,
    ) -> None:
        """`is_hooked`: the LM head has hooks, so it must compute all logits."""
        self.head, self.is_hooked = head, is_hooked
        self.hidden_ND, self.computed_NV = x_ND, logits_NV

    @property
    def x_ND(self) -> Tensor:
        assert self.hidden_ND is not None, "logits without hidden states"
        return self.hidden_ND

    def __len__(self) -> int:
        return len(self.x_ND)

    @property
    @torch.inference_mode()
    def logits_NV(self) -> Tensor:
        """All logits, at least float32. Once they are computed, the other methods read them."""
        if self.computed_NV is None:
            logits_NV: Tensor = self.head(self.x_ND[None])[0]
            self.computed_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float))
        return self.computed_NV

    def select(self, rows: Sequence[int]) -> NextTokenLogits:
        """Some of the rows; self if they are all of them."""
        if len(rows) == len(self):
            return self
        logits_NV = None if self.computed_NV is None else self.computed_NV[rows]
        return NextTokenLogits(self.head, self.x_ND[rows], logits_NV, self.is_hooked)

    @torch.inference_mode()
    def logits_of(self, token: int, rows: Sequence[int]) -> NDArray[np.float64]:
        """The logits of one token in some rows; the same bits as in `logits_NV`."""
        if self.computed_NV is not None:
            logits_N = self.computed_NV[rows, token]
        else:
            logits_N = self.head.logit_of(self.x_ND[rows], token)
        return logits_N.cpu().double().numpy()

    @torch.inference_mode()
    def top_k(self, k: int, banned: Banned) -> TopLogprobs:
        """The k most likely tokens of each row that are not banned there. Banned tokens count in
        the log-sum-exp."""
        banned = {ids: rows for ids, rows in banned.items() if rows}
        in_all_rows = [ids for ids, rows in banned.items() if len(rows) == len(self)]
        top = None
        if len(in_all_rows) == len(banned) and self.computed_NV is None:
            top = self.top_k_of_head(k, [one for ids in in_all_rows for one in ids])
        parts = top or self.top_k_of_logits(k, banned)
        values_NK, ids_NK, lse_N = (part.cpu().numpy() for part in parts)
        return values_NK.astype(np.float64) - lse_N[:, None], ids_NK, lse_N

    def top_k_of_head(self, k: int, banned: Sequence[int]) -> TopK | None:
        """The top k computed by the LM head without materializing the logits; None: not
        supported."""
        if self.is_hooked or not isinstance(self.head, PackedLMHead):
            return None
        return self.head.top_k(self.x_ND, k, banned)

    def top_k_of_logits(self, k: int, banned: Banned) -> TopK:
        logits_NV = self.logits_NV
        lse_N = log_sum_exp(logits_NV)
        if banned:
            logits_NV = logits_NV.clone()
        for ids, rows in banned.items():
            logits_NV[np.ix_(rows, ids)] = -inf
        return TopK(*top_k(logits_NV, k), lse_N)


class LazyLogits(NextTokenLogits):
    """Logits of a decode step that has not run yet. If only the top k are needed, the compiled
    stack runs the step and the head in one call (`fused_top_k`); otherwise `forward` runs it."""

    def __init__(
        self,
        head: LMHead,
        num_rows: int,
        forward: Callable[[], Tensor],
        fused_top_k: Callable[[int, Sequence[int]], TopK],
    ) -> None:
        super().__init__(head, None)
        self.num_rows, self.forward, self.fused_top_k = num_rows, forward, fused_top_k

    @property
    def x_ND(self) -> Tensor:
        if self.hidden_ND is None:
            self.hidden_ND = self.forward()
        return self.hidden_ND

    def __len__(self) -> int:
        return self.num_rows

    def top_k_of_head(self, k: int, banned: Sequence[int]) -> TopK | None:
        if self.hidden_ND is None:
            return self.fused_top_k(k, banned)
        return super().top_k_of_head(k, banned)
