"""The contract of a position encoding. Each kind overrides one of three hooks:

    add                            x_BTD -> x_BTD            absolute: sinusoidal, learned
    rotate_queries, rotate_keys    q_BTHO, k_BTKO -> same    rotary; scaling of queries
    bias                           layer, q_BTHC -> Bias     relative: Shaw, T5, ALiBi, CoPE

A bias is a function of slots (core/kv_spec.py), so it is the same with and without a cache. It may
read the keys (`Bias.for_call`), which contextual encodings such as CoPE need. One instance serves a
whole stack; a kind with one table per layer stores them stacked by layer.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from weft.core.kv_spec import KVView
from weft.nn.positions.config import NoPositionConfig, PositionConfigBase, PositionShape


class Bias:
    """Values added to the attention scores, computed tile by tile: T x S values are never stored.

    Base class of the biases; a subclass overrides `at`, and `tensors` if it has any.
    """

    by_distance: bool = False
    """True: the value depends on the head and on q - k alone. Paged attention then reads it from a
    table of distances in the compiled kernel."""
    max_distance: int | None = None
    """With `by_distance`: all distances beyond this one have its value, on each side, so that the
    table need not be longer. None: values differ up to the longest sequence."""

    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors it is computed from that may need gradients."""
        return ()

    def at(self, t_T: Tensor, q_BT: Tensor, k_S: Tensor, *tensors: Tensor) -> Tensor:
        """bias_BHTS (B may be 1) for queries t_T of the call, whose slots are q_BT, and key slots
        k_S. `tensors` replace `self.tensors()`, so that a kernel can ask for their gradients."""
        raise NotImplementedError(f"{type(self).__name__} does not define its values")

    def query_table(self) -> Tensor | None:
        """bias_NHM of a bias over a packed row whose value depends on the query, the head and the
        distance: entry d is for the key d slots before the query; not causal: from the key
        (M - 1) / 2 after the query on. Larger distances have the value of the nearest entry. Paged
        attention then reads it in the compiled kernel; a bias with neither this nor `by_distance`
        is evaluated for each query. None: there is no such table."""
        return None

    def for_call(self, q_BTHC: Tensor, view: KVView, first: int = 0) -> Bias:
        """This bias for one call of a kernel: queries `first`, `first + 1`, ... of the forward
        pass over the keys of `view`. A contextual encoding overrides it to read `view.k_BSKC`;
        q_BTHC and the keys are then those whose products are the scores."""
        return self if first == 0 else ShiftedBias(self, first)


@dataclass(frozen=True)
class ShiftedBias(Bias):
    """A bias for a call whose first query is number `first` of the forward pass."""

    bias: Bias
    first: int

    def tensors(self) -> tuple[Tensor, ...]:
        return self.bias.tensors()

    def at(self, t_T: Tensor, q_BT: Tensor, k_S: Tensor, *tensors: Tensor) -> Tensor:
        return self.bias.at(t_T + self.first, q_BT, k_S, *tensors)


class Position(nn.Module):
    """No position encoding; the base class of every kind."""

    config_type: type[PositionConfigBase] = NoPositionConfig
    """Settings of this kind. The union of all of them is derived from POSITIONS."""

    def __init__(self, config: object, shape: PositionShape) -> None:
        super().__init__()

    def add(self, x_BTD: Tensor, positions_BT: Tensor) -> Tensor:
        """Add the encoding to the embedded tokens; positions_BT is [1, T] or [B, T]."""
        return x_BTD

    def position_rows(self, num_rows: int) -> Tensor | None:
        """The rows that `add` adds, by position: `num_rows` or more of them, float32. None: there
        is no such table, or it is shorter."""
        return None

    def rotate_queries(self, q_BTHO: Tensor, positions_BT: Tensor, lengths: int | Tensor) -> Tensor:
        """Encode the positions of new queries; positions_BT is [1, T] or [B, T]. `lengths`: tokens
        of each sequence so far, one number or a tensor [B]; only dynamic scaling reads it. With MLA
        q holds the decoupled part alone: a kind that needs whole heads must raise a ConfigError
        where shape.rotary_size differs from shape.head_size."""
        return q_BTHO

    def rotate_keys(self, k_BTKO: Tensor, positions_BT: Tensor, lengths: int | Tensor) -> Tensor:
        """The same for new keys, before they are cached."""
        return k_BTKO

    def bias(self, layer: int, q_BTHC: Tensor) -> Bias | None:
        """What this encoding adds to the scores of a layer's queries; None: nothing."""
        return None
