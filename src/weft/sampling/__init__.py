"""Sampling: logits_BV -> token ids_B. One small pure function a file, applied in the order of this
table."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from weft.sampling.min_p import min_p
from weft.sampling.settings import SamplingConfig
from weft.sampling.temperature import temperature
from weft.sampling.top_k import top_k
from weft.sampling.top_p import top_p

STEPS: dict[str, Callable[[Tensor, SamplingConfig], Tensor]] = {
    "temperature": temperature,
    "top_k": top_k,
    "top_p": top_p,
    "min_p": min_p,
}


def shape_logits(logits_BV: Tensor, config: SamplingConfig) -> Tensor:
    """Logits after every step of the table; what a step rules out is -inf."""
    for step in STEPS.values():
        logits_BV = step(logits_BV, config)
    return logits_BV
