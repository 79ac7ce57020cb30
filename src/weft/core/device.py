"""Device and dtype: the names of options -> torch objects that work on this machine.

`choose_device("auto")` selects a GPU if there is one, `choose_dtype("auto")` float32 on a CPU. Some
processors report bfloat16 matrix instructions (AMX) that end the process with SIGILL; if bfloat16
is requested on a CPU, a child process tries them first, once per process.
"""

from __future__ import annotations

import functools
import logging
import re
import subprocess
import sys

import torch
from torch import nn

from weft.core.errors import UsageError, shown
from weft.core.registry import pick

log = logging.getLogger(__name__)

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

PROBE = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); assert (a @ a)[0, 0] == 64"


def choose_device(name: str = "auto") -> torch.device:
    """'auto', 'cpu', 'cuda', 'cuda:1' or 'mps' -> a device of this machine."""
    if not isinstance(name, str):
        raise UsageError(f"device is {shown(name)}: it must be a str. Use 'cpu' or 'auto'.")
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|mps|cuda(:\d+)?", name):
        raise UsageError(
            f"device is '{name}': allowed are auto, cpu, cuda, cuda:N and mps. Use --device cpu."
        )
    if not is_present(name):
        raise UsageError(f"device is '{name}', but torch finds none here. Use --device cpu.")
    return torch.device(name)


def is_present(name: str) -> bool:
    """Whether this machine has the device."""
    if name.startswith("cuda"):
        return int(name.partition(":")[2] or 0) < torch.cuda.device_count()
    return name == "cpu" or torch.backends.mps.is_available()


def device_of(model: nn.Module) -> torch.device:
    """The device of a model's weights."""
    return next(model.parameters()).device


def dtype_of(model: nn.Module) -> torch.dtype:
    """The dtype of a model's weights."""
    return next(model.parameters()).dtype


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """'auto' or a key of DTYPES -> a dtype that works on the device."""
    if not isinstance(name, str):
        raise UsageError(f"dtype is {shown(name)}: it must be a str, as 'float32'. Use a name.")
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    dtype = pick(DTYPES, name, "dtype")
    if dtype == torch.bfloat16 and device.type == "cpu" and not bfloat16_works():
        log.warning(
            "dtype=float32 requested=bfloat16 "
            "reason='a bfloat16 matrix product ends the process on this processor'"
        )
        return torch.float32
    return dtype


@functools.cache
def bfloat16_works() -> bool:
    """Whether a bfloat16 matrix product runs here; tried in a child process, as it may crash."""
    command = [sys.executable, "-c", PROBE]
    try:
        return subprocess.run(command, capture_output=True, timeout=120).returncode == 0
    except subprocess.TimeoutExpired:
        return False
