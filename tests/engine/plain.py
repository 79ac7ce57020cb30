"""Greedy writing as simply as can be, uncached or with the plain cache: what the engine is compared
with."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from weft.core.forward_batch import ForwardBatch
from weft.models.build import AnyModel


@torch.no_grad()
def greedy(
    model: AnyModel,
    prompt: Sequence[int],
    max_tokens: int,
    end_id: int | None = None,
    source: Sequence[int] | None = None,
) -> list[int]:
    """The likeliest token again and again, the end not included."""
    inputs = () if source is None else (ForwardBatch(torch.tensor([list(source)])),)
    output: list[int] = []
    while len(output) < max_tokens:
        batch = ForwardBatch(torch.tensor([[*prompt, *output]]))
        token = int(model(batch, *inputs)[0, -1].argmax())  # type: ignore[call-arg]
        if token == end_id:
            break
        output.append(token)
    return output
