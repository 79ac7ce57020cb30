"""Temperature: logits_BV -> logits_BV / temperature."""

from __future__ import annotations

from torch import Tensor

from weft.sampling.settings import SamplingConfig


def temperature(logits_BV: Tensor, config: SamplingConfig) -> Tensor:
    """Below 1 sharper, above 1 flatter; greedy (0) leaves the logits as they are."""
    return logits_BV if config.temperature in (0.0, 1.0) else logits_BV / config.temperature
