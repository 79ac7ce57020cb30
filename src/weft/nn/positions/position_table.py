"""Two caches for values that depend on positions alone, shared by sinusoidal and rotary positions.

`PositionTable`: positions -> rows, each computed once. `LastResult`: the last few results of a
function of tensors, looked up by the content of the tensors, so that the layers of a stack share
one lookup. Differs from registered buffers: nothing is saved, moved or cast with the module, and a
module built on the meta device has nothing to fill in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

FIRST_ROWS = 256

Result = TypeVar("Result")


class PositionTable:
    """Rows for positions 0, 1, 2, ..., kept per device and doubled in size on demand.

    The table always grows in the same steps, so a row has the same bits whatever was looked up
    before it.
    """

    def __init__(self, compute: Callable[[Tensor], Tensor]) -> None:
        self.compute = compute
        """Integer positions [n] on the CPU -> rows [n, ...]."""
        self.tables: dict[torch.device, Tensor] = {}

    # ordinary tensors even inside inference_mode: a table made there could not be used in training
    @torch.inference_mode(False)
    @torch.no_grad()
    def rows(self, positions_BT: Tensor) -> Tensor:
        """The rows of these positions, [B, T, ...], without gradient."""
        num_rows = int(positions_BT.max()) + 1
        return self.grown_to(num_rows, positions_BT.device)[positions_BT]

    def first_rows(self, num_rows: int, device: torch.device) -> Tensor:
        """The whole table on a device, with num_rows rows or more."""
        table = self.tables.get(device)
        if table is not None and table.shape[0] >= num_rows:
            return table
        with torch.inference_mode(False), torch.no_grad():
            return self.grown_to(num_rows, device)

    def grown_to(self, num_rows: int, device: torch.device) -> Tensor:
        """The same, extended where it is too short. Call it outside of inference_mode."""
        table = self.tables.get(device)
        if table is None:
            table = self.compute(torch.arange(FIRST_ROWS, device="cpu")).to(device)
        while table.shape[0] < num_rows:
            size = table.shape[0]
            more = self.compute(torch.arange(size, 2 * size, device="cpu"))
            table = torch.cat((table, more.to(device)))
        self.tables[device] = table
        return table


@dataclass(frozen=True)
class TensorSnapshot:
    """A tensor together with its content at the time a result was computed from it."""

    tensor: Tensor
    version: int | None
    copy: Tensor

    @classmethod
    def of(cls, tensor: Tensor) -> TensorSnapshot:
        return cls(tensor, version_of(tensor), tensor.clone())

    def matches(self, other: object) -> bool:
        """Whether `other` holds the same values; not compared where it is provably unchanged."""
        if not isinstance(other, Tensor):
            return False
        if other is self.tensor and self.version is not None:
            return self.version == version_of(other)
        is_same_type = (other.device, other.dtype) == (self.copy.device, self.copy.dtype)
        return is_same_type and torch.equal(other, self.copy)


def version_of(tensor: Tensor) -> int | None:
    """The tensor's write counter; None: tensors made in inference_mode have none."""
    return None if tensor.is_inference() else tensor._version


class LastResult(Generic[Result]):
    """The last `size` results by their key, a tuple of tensors and plain values."""

    def __init__(self, size: int = 2) -> None:
        self.size = size
        self.entries: tuple[tuple[tuple[object, ...], Result], ...] = ()

    def get(self, key: tuple[object, ...], compute: Callable[[], Result]) -> Result:
        """The result for this key; `compute` is called if it is not among the last ones."""
        for cached_key, result in self.entries:
            if all(map(is_same, cached_key, key)):
                return result
        result = compute()
        cached_key = tuple(
            TensorSnapshot.of(part) if isinstance(part, Tensor) else part for part in key
        )
        # one assignment: another thread sees the old entries or the new ones, never half of each
        self.entries = ((cached_key, result), *self.entries[: self.size - 1])
        return result


def is_same(cached: object, current: object) -> bool:
    """Whether one part of a key is unchanged."""
    if isinstance(cached, TensorSnapshot):
        return cached.matches(current)
    return not isinstance(current, Tensor) and cached == current
