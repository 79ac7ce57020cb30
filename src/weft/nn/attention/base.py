"""The contracts of attention: `Mask` (who may see whom) and `Kernel` (the computation); `Bias` is
in positions/base.py.

    scores = softcap(q . k * scale) + bias,  masked,  weights = softmax(scores),  out = weights . v,
    lse = log(sum(exp(scores)))

They use slots (core/kv_spec.py): key s is token s of its sequence; query t of this pass is token
`view.start + t`.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from weft.core.kv_spec import KVView
from weft.nn.positions.base import Bias


class Mask(Protocol):
    """A description, not a matrix. `a & b`, `a | b` and `~a` combine descriptions (masks.py)."""

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """Whether query slot q of batch row b may see key slot k. Index tensors of any shapes that
        broadcast."""

    def bounds(
        self, q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(maybe, surely) for rectangles of slots, ends included: False in `maybe` promises that
        no pair is allowed, True in `surely` that all are. Ends broadcast; results are [B or 1,
        *broadcast shape]."""


class Kernel(Protocol):
    """One way to compute attention. Every kernel gives the reference's result."""

    def __call__(
        self,
        q_BTHC: Tensor,
        view: KVView,
        mask: Mask | None = None,
        bias: Bias | None = None,
        scale: float | None = None,
        *,
        softcap: float | None = None,
        dropout: float = 0.0,
    ) -> tuple[Tensor, Tensor]:
        """(out_BTHU, lse_BHT). H is a multiple of the view's K: query head h reads key head h //
        (H // K). `scale` None: 1/sqrt(C). A query that may see nothing gets out 0 and lse -inf.
        Gradients flow through both."""
