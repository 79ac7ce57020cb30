"""Versions and settings that the bits of a forward pass depend on besides weights: name -> value.

    version      Weft, with a hash of the modules that compute
    torch        its version, instruction set and precision; the device
    kernels      the compiled library with the hash of its sources, flags and compiler; or torch's
    processor    of a CPU: torch's own kernels are selected by it
    activations  quantized matrices whose inputs are quantized to int8

Cache files store these values (cache_file.py). The number of threads is not included, because
results do not depend on it. Values are short: error messages print both values of a difference.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from hashlib import sha256
from pathlib import Path

import torch

from weft import __version__
from weft.models.build import AnyModel
from weft.native.compiler import library_path, processor
from weft.native.library import native
from weft.nn.packed_modules import packed_matrices

SOURCES = Path(__file__).parents[1]
COMPUTING_PACKAGES = ("core", "native", "nn", "models")
ROUNDING_VARIABLES = (
    *("ATEN_CPU_CAPABILITY", "MKL_CBWR", "MKL_DEBUG_CPU_TYPE", "MKL_ENABLE_INSTRUCTIONS"),
    *("DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE"),
)
"""Environment variables that select kernels of torch and its libraries."""


def arithmetic(model: AnyModel, device: torch.device) -> dict[str, str]:
    """All parts by name."""
    library = native() if device.type == "cpu" else None
    return {
        "version": f"{__version__} ({hash_of_sources()})",
        "torch": f"{torch.__version__} {torch_settings(device)}",
        "kernels": "torch's kernels" if library is None else library_path().stem,
        "processor": processor_of(device),
        "activations": int8_activations(model),
    }


@cache
def hash_of_sources() -> str:
    """Of the Python modules of the packages that compute."""
    folders = (SOURCES / package for package in COMPUTING_PACKAGES)
    paths = sorted(path for folder in folders for path in folder.rglob("*.py"))
    return short_hash(f"{path.relative_to(SOURCES)}\n{path.read_text('utf-8')}" for path in paths)


def torch_settings(device: torch.device) -> str:
    """Instruction set, precision of products, and the variables that change either."""
    if device.type != "cpu":
        return f"{device.type} {torch.get_float32_matmul_precision()}"
    values = [f"{name}={os.environ[name]}" for name in ROUNDING_VARIABLES if name in os.environ]
    hashed = f" {short_hash(values)}" if values else ""
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{capability} {torch.get_float32_matmul_precision()}{hashed}"


def processor_of(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return short_hash([processor()])


def int8_activations(model: AnyModel) -> str:
    """float32, or the matrices whose inputs are quantized to int8."""
    names = [
        f"{name} {matrix.kind}"
        for name, matrix in packed_matrices(model)
        if matrix.int8_activations
    ]
    return f"int8 in {len(names)} matrices ({short_hash(names)})" if names else "float32"


def short_hash(parts: Iterable[str]) -> str:
    digest = sha256()
    for part in parts:
        digest.update(f"{len(part)} {part}".encode())
    return digest.hexdigest()[:12]
