"""Top-p: the smallest set of most likely tokens whose probability reaches p; the rest become -inf
(Holtzman 2020).

Differs from the usual code, which sorts the whole vocabulary: the largest few are sorted, then
more, then all, until they reach p. The sums are in float64, so that which token is the last does
not hang on the order of 50,000 additions in float32.
"""

from __future__ import annotations

from torch import Tensor

from weft.sampling.base import Row
from weft.sampling.candidates import keep_best, largest
from weft.sampling.draw import probabilities

FEW, MORE = 256, 4096
"""Candidates of the first tries. Most places of a text are decided within the first."""


def top_p(logits_V: Tensor, row: Row) -> Tensor:
    share, V = row.config.top_p, len(logits_V)
    if share >= 1:
        return logits_V
    p_V = probabilities(logits_V)
    # relative to the most likely token, which is among the candidates, too
    needed = share * float(p_V.sum() / p_V.max())
    for k in (min(FEW, V), min(MORE, V), V):
        best_K = largest(logits_V, k)
        p_K = probabilities(best_K)
        mass_K = (p_K / p_K[0]).cumsum(0)
        if mass_K[-1] >= needed:
            break
    # a token stays if those before it have not reached p: the one that reaches it does, too
    count = 1 + int((mass_K[:-1] < needed).sum())
    return keep_best(logits_V, best_K, count)
