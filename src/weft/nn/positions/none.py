"""No positions: nothing enters, nothing leaves. The class is `Position` itself (base.py).

A causal mask alone tells a decoder something about order (Haviv 2022, "NoPE"); an encoder without
positions sees its text as a bag of words.
"""

from __future__ import annotations

from typing import Literal

from weft.core.config import Config


class NoPositionConfig(Config):
    """Settings of the absent encoding."""

    kind: Literal["none"] = "none"
