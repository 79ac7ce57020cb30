"""Temperature: logits_V -> logits_V / temperature."""

from __future__ import annotations

from torch import Tensor

from weft.sampling.base import Row


def temperature(logits_V: Tensor, row: Row) -> Tensor:
    """Below 1 sharper, above 1 flatter; greedy (0) leaves the logits as they are."""
    config = row.config
    is_off = config.is_greedy or config.temperature == 1
    return logits_V if is_off else logits_V / config.temperature
