"""Logits processors and warpers: logits_V and its SamplingRow -> changed logits_V.

All of them, in the order in which they are applied. The order is that of vLLM and transformers:

    PROCESSORS   grammar, bans, bias, penalties: change which token is the most likely, so greedy
                 decoding applies them too. The bias comes before the repetition penalty, which
                 depends on the sign of the logit; the other penalties only add.
    WARPERS      temperature first, so that top-p and min-p truncate the distribution that is
                 sampled from; then top-k, top-p and min-p, each on what the one before has left.

A processor sees one row and never another one, so the composition of a batch cannot change a
choice. Differs from engines that process the whole batch with one column of settings per parameter:
those are faster on a GPU, but have to prove this property.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from weft.sampling.params import SamplingParams

NEG_INF = -math.inf

TOP_P_CANDIDATES = [256, 4096]
"""Numbers of tokens that top-p sorts before it sorts all. 256 are usually enough."""

TokenIds = Sequence[int] | Tensor


@dataclass(frozen=True)
class SamplingRow:
    """Everything that the choice of one token depends on, besides its logits."""

    params: SamplingParams
    position: int = 0
    """Position of the token in its request: the draw is a function of (seed, position)."""
    prompt: TokenIds = ()
    """Read by the repetition penalty. A tensor avoids a conversion in every step."""
    output: TokenIds = ()
    """Tokens generated so far, read by all three penalties."""
    allowed_V: Tensor | None = None
    """True for the ids that the grammar allows here; None: all."""

    @property
    def is_argmax(self) -> bool:
        """Whether the token is the argmax of the unprocessed logits."""
        params = self.params
        return params.is_greedy and not params.changes_argmax and self.allowed_V is None

    def after(self, ids: Sequence[int], allowed_V: Tensor | None = None) -> SamplingRow:
        """The row of the position after `ids`, as if they had been chosen: verifies drafts."""
        previous = self.output.tolist() if isinstance(self.output, Tensor) else self.output
        output = [*previous, *ids] if ids else self.output
        position = self.position + len(ids)
        return replace(self, position=position, output=output, allowed_V=allowed_V)


class LogitsProcessor(Protocol):
    """One entry of PROCESSORS or WARPERS."""

    def __call__(self, logits_V: Tensor, row: SamplingRow, /) -> Tensor:
        """Return the changed logits_V in float32; excluded tokens are -inf.

        The input is never modified, and is returned itself if the parameter is off. A warper never
        excludes the most likely token."""
        ...


def allowed(logits_V: Tensor, row: SamplingRow) -> Tensor:
    """Constrained decoding: tokens that the grammar does not allow become -inf."""
    if row.allowed_V is None:
        return logits_V
    return logits_V.masked_fill(~row.allowed_V.to(logits_V.device), NEG_INF)


def banned(logits_V: Tensor, row: SamplingRow) -> Tensor:
    """Banned ids become -inf, regardless of their bias."""
    if not row.params.banned:
        return logits_V
    return logits_V.index_fill(0, as_ids(row.params.banned, logits_V.device), NEG_INF)


def logit_bias(logits_V: Tensor, row: SamplingRow) -> Tensor:
    """Add a bias to single logits (OpenAI). Differs from vLLM, which clamps it to [-100, 100]."""
    bias = row.params.logit_bias
    if not bias:
        return logits_V
    values = torch.tensor(list(bias.values()), dtype=logits_V.dtype, device=logits_V.device)
    return logits_V.index_add(0, as_ids(list(bias), logits_V.device), values)


def repetition_penalty(logits_V: Tensor, row: SamplingRow) -> Tensor:
    """l -> l / r if l > 0 else l * r, once for each token of the prompt or the output.

    As in transformers and vLLM. Differs from Keskar 2019, which also divides negative logits and
    so makes those tokens more likely."""
    penalty = row.params.repetition_penalty
    if penalty == 1:
        return logits_V
    ids_N = torch.cat([as_ids(ids, logits_V.device) for ids in (row.prompt, row.output)])
    ids_N = ids_N[ids_N < len(logits_V)]  # the input vocabulary may be larger than the output's
    old_N = logits_V[ids_N]
    new_N = torch.where(old_N < 0, old_N * penalty, old_N / penalty)
    return logits_V.scatter(0, ids_N, new_N)


def frequency_penalty(logits_V: Tensor, row: SamplingRow) -> Tensor:
    """l -> l - count * f, where count is the number of occurrences in the output (OpenAI)."""
    penalty = row.params.frequency_penalty
    if penalty == 0 or not len(row.output):
        return logits_V
    ids_N, counts_N = as_ids(row.output, logits_V.device).unique(return_counts=True)
    return logits_V.index_add(0, ids_N, (counts_N * -penalty).to(logits_V.dtype))


def presence_penalty(logits_V: Tensor, row: SamplingRow) -> Tensor:
    """l -> l - a, once for each token that occurs in the output (OpenAI)."""
    penalty = row.params.presence_penalty
    if penalty == 0 or not len(row.output):
        return logits_V
    ids_N = as_ids(row.output, logits_V.device)
    return logits_V.scatter(0, ids_N, logits_V[ids_N] - penalty)


def temperature(logits_V: Tensor, row: SamplingRow) -> Tensor:
    """l -> l / temperature. Below 1 the distribution is sharper, above 1 flatter."""
    params = row.params
    is_off = params.is_greedy or params.temperature == 1
    return logits_V if is_off else logits_V / params.temperature


def top_k(logits_V: Tensor, row: SamplingRow) -> Tensor:
    """All but the k largest logits become -inf (Fan 2018). Ties with the k-th are kept, as in
    transformers and vLLM."""
    k = row.params.top_k
    if k == 0 or k >= len(logits_V):
        return logits_V
    return mask_below(logits_V, float(largest(logits_V, k)[-1]))


def top_p(logits_V: Tensor, row: SamplingRow) -> Tensor:
    """Keep the smallest set of most likely tokens whose probability reaches p (Holtzman 2020): at
    least one, also if p is 0.

    Differs from the usual code, which sorts the whole vocabulary: the largest few are sorted, then
    more, then all, until they reach p. The sums are in float64, so that the last token of the set
    does not depend on the order of 50,000 additions in float32."""
    share, V = row.params.top_p, len(logits_V)
    if share >= 1:
        return logits_V
    p_V = probabilities(logits_V)
    # relative to the most likely token, which is among the candidates as well
    needed = share * float(total(p_V) / p_V.max())
    for num_candidates in (*TOP_P_CANDIDATES, V):
        largest_K = largest(logits_V, min(num_candidates, V))
        p_K = probabilities(largest_K)
        mass_K = (p_K / p_K[0]).cumsum(0)
        if mass_K[-1] >= needed:
            break
    # a token is kept if the ones before it have not reached p, so the one that reaches p is kept
    count = 1 + int((mass_K[:-1] < needed).sum())
    return keep_top(logits_V, largest_K, count)


def min_p(logits_V: Tensor, row: SamplingRow) -> Tensor:
    """Tokens less than p times as likely as the most likely token become -inf (Nguyen 2024)."""
    if row.params.min_p == 0:
        return logits_V
    return mask_below(logits_V, float(logits_V.max()) + math.log(row.params.min_p))


PROCESSORS: dict[str, LogitsProcessor] = {
    "allowed": allowed,
    "banned": banned,
    "logit_bias": logit_bias,
    "repetition_penalty": repetition_penalty,
    "frequency_penalty": frequency_penalty,
    "presence_penalty": presence_penalty,
}
"""Applied to every row, also for greedy decoding."""

WARPERS: dict[str, LogitsProcessor] = {
    "temperature": temperature,
    "top_k": top_k,
    "top_p": top_p,
    "min_p": min_p,
}
"""Applied before a random draw only: they keep the most likely token the most likely."""


def process_logits(
    logits_V: Tensor, row: SamplingRow, processors: Mapping[str, LogitsProcessor]
) -> Tensor:
    """Apply all processors of a table in order; excluded tokens are -inf."""
    for processor in processors.values():
        logits_V = processor(logits_V, row)
    return logits_V


# The k largest logits. Only values are sorted, never ids: a truncation is a smallest value and a
# count, and ids matter only where several tokens have exactly that value. The result is that of a
# stable sort of the whole vocabulary, and on a CPU numpy's partition is several times faster than
# torch.topk.


def largest(logits_V: Tensor, k: int) -> Tensor:
    """The values of the k largest logits, in descending order."""
    V = len(logits_V)
    if logits_V.device.type != "cpu":
        return logits_V.topk(k).values
    values = logits_V.detach().numpy()
    top = np.partition(values, V - k)[V - k :] if k < V else values
    return torch.from_numpy(np.sort(top)[::-1].copy())


def mask_below(logits_V: Tensor, minimum: float) -> Tensor:
    """Logits below `minimum` become -inf."""
    # threshold keeps values above its argument, and takes a fifth of the time of a mask
    below = np.nextafter(np.float32(minimum), np.float32(NEG_INF))
    return F.threshold(logits_V, float(below), NEG_INF)


def keep_top(logits_V: Tensor, largest_K: Tensor, count: int) -> Tensor:
    """Keep the `count` largest logits, whose K >= count largest values are `largest_K`. Of tokens
    tied at the smallest kept value, those with the lowest ids are kept."""
    minimum = largest_K[count - 1]
    kept_V = mask_below(logits_V, float(minimum))
    if count == len(logits_V) or (count < len(largest_K) and largest_K[count] < minimum):
        return kept_V
    surplus = int((kept_V >= minimum).sum()) - count
    tied_N = (kept_V == minimum).nonzero().squeeze(-1)
    return kept_V.index_fill(0, tied_N[len(tied_N) - surplus :], NEG_INF)


def top_ids(logits_V: Tensor, k: int) -> Tensor:
    """The ids of the k largest logits, largest first, ties by the lowest id."""
    largest_K = largest(logits_V, min(k, len(logits_V)))
    ids_N = (logits_V >= largest_K[-1]).nonzero().squeeze(-1)
    order_N = logits_V[ids_N].sort(descending=True, stable=True).indices
    return ids_N[order_N][:k]


def probabilities(logits_V: Tensor) -> Tensor:
    """Softmax in float64, so that cumulative sums are exact enough for any vocabulary."""
    # softmax in float32 first: torch's exp is 20 times slower where results underflow float32
    return logits_V.softmax(-1).double()


def total(p_V: Tensor) -> Tensor:
    """The sum. torch divides the terms of one long sum among its threads, and those of two not."""
    return p_V.expand(2, -1).sum(-1)[0]


def as_ids(ids: TokenIds, device: torch.device | None = None) -> Tensor:
    return torch.as_tensor(ids, dtype=torch.long, device=device)
