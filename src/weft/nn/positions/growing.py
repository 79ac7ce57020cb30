"""Two kinds of memory for numbers that depend on positions alone, shared by sinusoidal and rotary.

`GrowingTable`: positions -> rows that were computed once. `Recent`: the last few results of a
function of tensors, found again by what the tensors hold, so that the layers of a stack share one
look-up. Differs from registered buffers: nothing is saved, moved or cast with the module, and a
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


class GrowingTable:
    """Rows for positions 0, 1, 2, ..., kept per device and doubled when a later position comes.

    The table always grows in the same steps, so a row has the same bits whatever came before it.
    """

    def __init__(self, make: Callable[[Tensor], Tensor]) -> None:
        self.make = make
        """Integer positions [n] on the CPU -> rows [n, ...]."""
        self.tables: dict[torch.device, Tensor] = {}

    # ordinary tensors even inside inference_mode: a table made there could never train again
    @torch.inference_mode(False)
    @torch.no_grad()
    def rows(self, positions_BT: Tensor) -> Tensor:
        """The rows of these positions, [B, T, ...], without gradient."""
        needed = int(positions_BT.max()) + 1
        return self.at_least(needed, positions_BT.device)[positions_BT]

    def covering(self, positions_BT: Tensor) -> Tensor:
        """The whole table, with a row for each of these positions."""
        return self.on(int(positions_BT.max()) + 1, positions_BT.device)

    def on(self, num_rows: int, device: torch.device) -> Tensor:
        """The whole table on a device, with num_rows rows or more."""
        table = self.tables.get(device)
        if table is not None and table.shape[0] >= num_rows:
            return table
        with torch.inference_mode(False), torch.no_grad():
            return self.at_least(num_rows, device)

    def at_least(self, num_rows: int, device: torch.device) -> Tensor:
        """The same, made longer where it is not long enough."""
        table = self.tables.get(device)
        if table is None:
            table = self.make(torch.arange(FIRST_ROWS, device="cpu")).to(device)
        while table.shape[0] < num_rows:
            size = table.shape[0]
            more = self.make(torch.arange(size, 2 * size, device="cpu"))
            table = torch.cat((table, more.to(device)))
        self.tables[device] = table
        return table


@dataclass(frozen=True)
class Seen:
    """A tensor as it was when a result was made from it."""

    tensor: Tensor
    version: int | None
    copy: Tensor

    @classmethod
    def now(cls, tensor: Tensor) -> Seen:
        return cls(tensor, version_of(tensor), tensor.clone())

    def still_is(self, other: object) -> bool:
        """Whether `other` holds the same numbers; unread where it provably is unchanged."""
        if not isinstance(other, Tensor):
            return False
        if other is self.tensor and self.version is not None:
            return self.version == version_of(other)
        is_alike = (other.device, other.dtype) == (self.copy.device, self.copy.dtype)
        return is_alike and torch.equal(other, self.copy)


def version_of(tensor: Tensor) -> int | None:
    """How often a tensor was written to; None: tensors made in inference_mode do not count."""
    return None if tensor.is_inference() else tensor._version


class Recent(Generic[Result]):
    """The last `size` results by their key, a tuple of tensors and plain values."""

    def __init__(self, size: int = 2) -> None:
        self.size = size
        self.entries: tuple[tuple[tuple[object, ...], Result], ...] = ()

    def get(self, key: tuple[object, ...], make: Callable[[], Result]) -> Result:
        """The result for this key; `make` is called where it is not among the last ones."""
        for seen, result in self.entries:
            if all(map(is_same, seen, key)):
                return result
        result = make()
        seen = tuple(Seen.now(part) if isinstance(part, Tensor) else part for part in key)
        # one assignment: another thread sees the old entries or the new ones, never half of each
        self.entries = ((seen, result), *self.entries[: self.size - 1])
        return result


def is_same(seen: object, now: object) -> bool:
    """Whether one part of a key is as it was."""
    if isinstance(seen, Seen):
        return seen.still_is(now)
    return not isinstance(now, Tensor) and seen == now
