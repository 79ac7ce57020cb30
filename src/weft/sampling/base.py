"""What a step of sampling reads and promises: `Row` and `Step`.

A step sees one row and never another, so that what shares a batch cannot change a choice: this
holds by the signature, not by care. Differs from engines that shape a whole batch at once with one
column of settings per knob: those are faster on a GPU and must prove it instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from weft.sampling.settings import SamplingConfig

Ids = Sequence[int] | Tensor


@dataclass(frozen=True)
class Row:
    """All that the choice of one token reads besides its logits."""

    config: SamplingConfig
    position: int = 0
    """Where in the request the token will stand: with the seed, it decides the draw."""
    prompt: Ids = ()
    """Read by the repetition penalty. A tensor saves a copy at every step."""
    output: Ids = ()
    """What was written so far, read by all three penalties."""
    allowed_V: Tensor | None = None
    """True for the ids that a grammar allows here; None: all."""

    @property
    def is_plain(self) -> bool:
        """Whether the largest logit, as it comes, is the choice."""
        return self.config.is_greedy and not self.config.adjusts and self.allowed_V is None

    def after(self, ids: Sequence[int], allowed_V: Tensor | None = None) -> Row:
        """The row of the position behind `ids`, as if they were chosen: so drafts are checked."""
        written = self.output.tolist() if isinstance(self.output, Tensor) else self.output
        output = [*written, *ids] if ids else self.output
        place = self.position + len(ids)
        return replace(self, position=place, output=output, allowed_V=allowed_V)


class Step(Protocol):
    """One entry of the tables in `weft.sampling`."""

    def __call__(self, logits_V: Tensor, row: Row, /) -> Tensor:
        """Shaped logits_V, in float32 as they came; what is ruled out is -inf. The input is never
        changed, and comes back itself where the row's settings leave this step off. A step behind
        the temperature never rules out the largest logit."""
        ...


def as_ids(ids: Ids, device: torch.device | None = None) -> Tensor:
    return torch.as_tensor(ids, dtype=torch.long, device=device)
