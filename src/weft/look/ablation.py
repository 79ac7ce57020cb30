"""What heads contribute to the next token: a trace with ablated heads -> changes of logits.

    trace = record(model, tokenizer, text, ablate=["2.3"])
    changes(trace)[0].token, .before, .after, .delta

Ablation sets the slice of a head in the input of W_O to zero; all later layers see the difference.
`decoder.logits_delta` of the trace is the difference at every position and for every token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from weft.core.errors import UsageError
from weft.look.trace_data import NextToken

if TYPE_CHECKING:
    from weft.look.trace import Trace


@dataclass(frozen=True)
class LogitChange:
    """The logit of one token without and with the ablation."""

    token: NextToken
    """With the ablation."""
    before: float

    @property
    def after(self) -> float:
        return self.token.logit

    @property
    def delta(self) -> float:
        """After minus before."""
        return self.after - self.before


def changes(trace: Trace, position: int = -1) -> tuple[LogitChange, ...]:
    """The changes of the logits of the most likely tokens at a position, best first."""
    stack = trace.model.main_part
    name = f"{stack}.logits_delta"
    if not trace.ablated or not trace.has(name):
        raise UsageError(
            "this trace has no ablated heads, or its model has no logits: record a language model "
            "with ablate=[(LAYER, HEAD)]."
        )
    row = position % trace.stage(name).shape[0]
    delta_V = trace.array(name, row=row)
    tokens = trace.candidates[stack][row]
    return tuple(LogitChange(one, one.logit - float(delta_V[one.id])) for one in tokens)


def total_change(trace: Trace, position: int = -1) -> float:
    """Kullback-Leibler divergence in nats KL(without || with the ablation) of the next token."""
    stack = trace.model.main_part
    row = position % trace.stage(f"{stack}.logits").shape[0]
    after_V = trace.array(f"{stack}.logits", row=row).astype(np.float64)
    before_V = after_V - trace.array(f"{stack}.logits_delta", row=row)
    log_before_V, log_after_V = before_V - log_sum(before_V), after_V - log_sum(after_V)
    return float((np.exp(log_before_V) * (log_before_V - log_after_V)).sum())


def log_sum(x: np.ndarray) -> float:
    largest = float(x.max())
    return largest + float(np.log(np.exp(x - largest).sum()))
