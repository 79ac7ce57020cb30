"""Sampling: logits -> token ids. One small pure function a file, applied in the order of these
tables.

The order is the one that users of vLLM and transformers know. What says how likely tokens should be
comes first, and greedy choice sees it too: the grammar, bans, bias, penalties. Bias precedes the
repetition penalty, which acts on the sign of what it finds; the others only add and could stand
anywhere. Then the temperature, so that p and min-p cut the distribution that is drawn from. Then
the cuts, each over what the one before has left: top-k, top-p, min-p.

choose         logits_BV and a Row for each -> ids_B, each row as if it were alone
draw           shaped logits and a number made from (seed, position) -> id
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from weft.sampling.allowed import allowed
from weft.sampling.banned import banned
from weft.sampling.base import Row, Step
from weft.sampling.frequency_penalty import frequency_penalty
from weft.sampling.logit_bias import logit_bias
from weft.sampling.min_p import min_p
from weft.sampling.presence_penalty import presence_penalty
from weft.sampling.repetition_penalty import repetition_penalty
from weft.sampling.settings import SamplingConfig
from weft.sampling.temperature import temperature
from weft.sampling.top_k import top_k
from weft.sampling.top_p import top_p

ADJUST: dict[str, Step] = {
    "allowed": allowed,
    "banned": banned,
    "logit_bias": logit_bias,
    "repetition_penalty": repetition_penalty,
    "frequency_penalty": frequency_penalty,
    "presence_penalty": presence_penalty,
}
"""Change which token is the most likely."""

NARROW: dict[str, Step] = {
    "temperature": temperature,
    "top_k": top_k,
    "top_p": top_p,
    "min_p": min_p,
}
"""Leave the most likely token what it is; greedy choice needs none of them."""

STEPS: dict[str, Step] = ADJUST | NARROW


def apply(steps: Mapping[str, Step], logits_V: Tensor, row: Row) -> Tensor:
    """The logits of one row after every step of a table; what a step rules out is -inf."""
    for step in steps.values():
        logits_V = step(logits_V, row)
    return logits_V


def shape_logits(logits_BV: Tensor, config: SamplingConfig) -> Tensor:
    """Logits of rows with common settings and nothing written so far, after every step."""
    row = Row(config)
    return torch.stack([apply(STEPS, logits_V, row) for logits_V in logits_BV.float()])
