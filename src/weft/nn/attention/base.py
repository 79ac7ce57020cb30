"""The contracts of attention: Mask, Kernel, AttentionCall, and what a layer reads besides x.

    scores = softcap(q . k * scale) + bias,  masked,  weights = softmax(scores),  out = weights . v,
    lse = log(sum(exp(scores)))

    AttentionContext   what all layers of a stack share in one forward pass
    AttentionSlot      which layer of the model an attention layer is
    AttentionCall      the arguments of one call of a kernel

Masks and biases are functions of slots (core/kv_spec.py): key s is token s of its sequence; query t
of the call is token `kv.start + t`. `Bias` is in positions/base.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from weft.core.kv_spec import KVCache, KVView, PagedView
from weft.nn.positions.base import Bias, Position


class Mask(Protocol):
    """A description, not a matrix. `a & b`, `a | b` and `~a` combine descriptions (masks/)."""

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """Whether query slot q of batch row b may attend to key slot k. Index tensors of any shapes
        that broadcast."""

    def bounds(
        self, q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(nonempty, full) for tiles of slots, ends included: where `nonempty` is False no pair is
        allowed, where `full` is True all are. Both may err on the other side. Ends broadcast;
        results are [B or 1, *broadcast shape]."""


@dataclass(frozen=True)
class AttentionSlot:
    """Identifies an attention layer of a model."""

    layer: int = 0
    kv_index: int = 0
    """Index of the layer among the model's KVSpecs."""
    is_cross: bool = False


@dataclass(frozen=True)
class AttentionContext:
    """The inputs that all layers of a stack share in one forward pass."""

    position: Position
    """Position encoding of this layer: layers with the model's pattern may have another one than
    those that attend to all keys."""
    positions_BT: Tensor
    """Position of each new token in its document; [1, T] if it is the same for all rows."""
    start: int | Tensor
    """Slot of the first new token."""
    lengths: int | Tensor
    """Tokens of each sequence so far, the new ones included; 0 for a packed row. Only dynamic RoPE
    scaling reads it, which a packed row never exceeds."""
    mask: Mask | None = None
    """Mask of the layers with the model's pattern."""
    full_mask: Mask | None = None
    """Mask of the layers that attend to all keys."""
    cache: KVCache | None = None
    memory_BSD: Tensor | None = None
    """Encoder output for cross-attention."""
    memory_mask: Mask | None = None


View_co = TypeVar("View_co", bound=KVView | PagedView, covariant=True)


@dataclass(frozen=True)
class AttentionCall(Generic[View_co]):
    """The arguments of one call of a kernel."""

    q_BTHC: Tensor
    kv: View_co
    """Keys and values. H is a multiple of their K: query head h uses key head h // (H // K)."""
    mask: Mask | None = None
    bias: Bias | None = None
    scale: float | None = None
    """Factor on q . k. None: 1/sqrt(C)."""
    softcap: float | None = None
    """Scores are limited to -softcap..softcap by softcap * tanh(score / softcap). None: no cap."""
    dropout: float = 0.0
    """Dropout probability of the weights."""

    @property
    def softmax_scale(self) -> float:
        return self.q_BTHC.shape[-1] ** -0.5 if self.scale is None else self.scale


DenseCall = AttentionCall[KVView]
"""A call over keys and values as plain tensors. Over pages: AttentionCall[PagedView]."""


class Kernel(Protocol):
    """One way to compute attention. Every kernel returns the reference kernel's result."""

    def __call__(self, call: DenseCall) -> tuple[Tensor, Tensor]:
        """(out_BTHU, lse_BHT). A query without any allowed key gets out 0 and lse -inf. Gradients
        flow through both."""
