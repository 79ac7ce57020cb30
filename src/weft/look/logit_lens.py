"""Logit lens (nostalgebraist 2020): what the LM head makes of the output of each layer.

    lens = logit_lens(trace)
    lens.top[layer][position][0].text        the most likely token after that layer

The final norm and the LM head are applied to the output of each layer at each position; the last
layer gives the model's own prediction. Only models with an LM head and `trace.source`, which is the
model; a trace that was read from a file has the lens it was stored with, if any.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from weft.core.errors import UsageError
from weft.look.trace_data import Array, LogitLens, NextToken

if TYPE_CHECKING:
    from weft.look.trace import Trace

TOP_K = 5


def logit_lens(
    trace: Trace, positions: Sequence[int] | None = None, top_k: int = TOP_K
) -> LogitLens:
    """The lens of some positions; None: of all."""
    for unit in lens_units(trace, positions, top_k):
        if unit is not None:
            return unit
    raise AssertionError("a lens without a result")


def lens_units(
    trace: Trace, positions: Sequence[int] | None = None, top_k: int = TOP_K
) -> Iterator[LogitLens | None]:
    """`logit_lens` in units of work: None after each, then the result."""
    stack = trace.model.main_part
    if trace.lens is not None and positions is None and top_k == TOP_K:
        yield trace.lens
        return
    if not trace.has(f"{stack}.logits") or trace.source is None:
        raise UsageError(
            "the logit lens needs the LM head of the model: this trace has no logits, or was read "
            "from a file. Record it from a language model."
        )
    T = trace.stage(f"{stack}.input").shape[0]
    chosen = list(range(T)) if positions is None else list(positions)
    rows: list[tuple[tuple[NextToken, ...], ...]] = []
    for layer in range(trace.model.stacks[stack]):
        x_ND: list[Array] = []
        for position in chosen:
            name = f"{stack}.{layer}.output"
            for values in trace.array_units(name, row=position):
                if values is None:
                    yield None
                else:
                    x_ND.append(values)
        tokens: list[tuple[NextToken, ...]] = []
        for part in trace.source.next_tokens(stack, np.stack(x_ND), top_k):
            tokens += part
            yield None
        rows.append(tuple(tokens))
    yield LogitLens(stack, tuple(chosen), tuple(rows))
