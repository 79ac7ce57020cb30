"""Configuration of all tests: shape checks, one thread, a fixed seed, no Hypothesis deadlines."""

import os
import signal

# set before torch and weft are imported, which read them once
os.environ["WEFT_CHECK"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import pytest
import torch

# a shell starts background jobs with SIGINT ignored, which processes started by tests would inherit
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile("weft", deadline=None, max_examples=50)
hypothesis.settings.register_profile(
    "ci", deadline=None, max_examples=50, derandomize=True, database=None
)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "weft")


@pytest.fixture(autouse=True)
def seed() -> int:
    """Seed torch before each test, so that results do not depend on the tests run before it."""
    torch.manual_seed(0)
    return 0
