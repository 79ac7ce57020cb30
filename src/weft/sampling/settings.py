"""Settings of sampling: how a token is chosen from its logits."""

from __future__ import annotations

from pydantic import Field

from weft.core.config import Config


class SamplingConfig(Config):
    """temperature 0 is greedy: the most likely token, whatever the other settings say."""

    temperature: float = Field(1.0, ge=0)
    """0: greedy. Below 1: sharper. Above 1: flatter."""
    top_k: int = Field(0, ge=0)
    """Only the k most likely tokens; 0: all."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Only the most likely tokens that together reach this probability (Holtzman 2020)."""
    min_p: float = Field(0.0, ge=0, lt=1)
    """Only tokens at least this share as likely as the most likely one (Nguyen 2024)."""
    seed: int = Field(0, ge=0)

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0
