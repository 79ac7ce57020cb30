"""The contiguous cache: one tensor per layer, [B, max_len, *row]. Slot s of row b holds token s of
sequence b.

Rows of a padded prompt are written too; the next tokens of that sequence overwrite them, and until
then no real query attends to them because they lie after it. The engine uses pages instead; this
cache is the reference that they are compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from weft.core.errors import UsageError
from weft.core.kv_spec import KVRows, KVSpec


class ContiguousCache:
    """A KVCache for a fixed batch. `start` stays an int while all sequences have the same
    length."""

    def __init__(
        self,
        specs: Sequence[KVSpec],
        batch_size: int,
        max_len: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.max_len = max_len
        self.start: int | Tensor = 0
        self.sources: dict[int, KVRows] = {}
        self.rows: list[KVRows] = [
            {} if spec.is_cross else empty_rows(spec, batch_size, max_len, device, dtype)
            for spec in specs
        ]

    def extend(self, layer: int, rows: KVRows) -> KVRows:
        """Write the new rows after the `start` stored ones; return views of all rows up to the
        last new one."""
        stored = self.rows[layer]
        end = self.end_of(next(iter(rows.values())).shape[1])
        for name, row in rows.items():
            write(stored[name], row, self.start)
        return {name: tensor[:, :end] for name, tensor in stored.items()}

    def source(self, layer: int, compute: Callable[[], KVRows]) -> KVRows:
        if layer not in self.sources:
            self.sources[layer] = compute()
        return self.sources[layer]

    def layout(self, layer: int) -> None:
        """Row b is sequence b."""

    def advance(self, lengths: int | Tensor) -> None:
        """Called after a forward pass: `lengths` new tokens of each sequence are now stored."""
        start = self.start + lengths
        is_even = isinstance(start, Tensor) and bool((start == start[0]).all())
        self.start = int(start[0]) if isinstance(start, Tensor) and is_even else start

    def end_of(self, num_new: int) -> int:
        """The slot after the last new row; a UsageError if the cache is too short for it."""
        end = num_new + int(self.start.max() if isinstance(self.start, Tensor) else self.start)
        if end > self.max_len:
            raise UsageError(
                f"the sequence has {end} tokens but the cache holds {self.max_len}. Make a longer "
                "cache, or stop earlier."
            )
        return end


def empty_rows(
    spec: KVSpec, batch_size: int, max_len: int, device: torch.device | str, dtype: torch.dtype
) -> KVRows:
    return {
        name: torch.zeros(batch_size, max_len, *shape, device=device, dtype=dtype)
        for name, shape in spec.rows.items()
    }


def write(stored: Tensor, row: Tensor, start: int | Tensor) -> None:
    """Write row [B, T, ...] into stored [B, max_len, ...] from slot `start` of each sequence on."""
    B, T = row.shape[:2]
    if isinstance(start, int):
        stored[:, start : start + T] = row
        return
    batch_B1 = torch.arange(B, device=row.device)[:, None]
    stored[batch_B1, start[:, None] + torch.arange(T, device=row.device)] = row
