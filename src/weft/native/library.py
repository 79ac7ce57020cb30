"""The native library as cffi loads it: its functions and structures; None where there is none.

csrc/weft_native.h is the only description of the ABI. Pointers to numbers are declared to cffi as
uintptr_t, so that addresses of tensors are passed as plain integers (0: null) without a cast per
argument. Structures are created by `Native.new`, from tuples in the order of their fields:

    library = native()
    norm = library.new("WeftNorm*", (weight.data_ptr(), 0, True, 1e-5, 0.0))
    check(library.lib.weft_norm(norm, x.data_ptr(), y.data_ptr(), rows, size, stride, threads))

A structure is freed with the Python object, and keeps nothing alive that it points to.
"""

from __future__ import annotations

import functools
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cffi
import torch  # importing it loads the OpenMP library that ours needs
from torch import Tensor

from weft.core.errors import UsageError
from weft.native.compiler import SOURCE_FOLDER, BuildError, VariableError, is_disabled, library_path

log = logging.getLogger(__name__)

HEADER = "weft_native.h"
DECLARATIONS = re.compile(r"// ---- cffi: begin\n(.*)// ---- cffi: end\n", re.DOTALL)
NUMBER_POINTER = re.compile(r"(const )?(void|char|float|double|uint16_t|int32_t|int64_t)\* ")
OPENMP_FILE = re.compile(r"/\S*/lib(?:gomp|iomp5|omp)\b\S*", re.MULTILINE)
OUT_OF_MEMORY = -1
"""As in csrc/abi.h."""


@dataclass(frozen=True)
class Native:
    """The loaded library."""

    ffi: Any
    lib: Any
    """Its functions, e.g. lib.weft_linear(...): a number >= 0, or an error for `check`."""
    panel_width: int
    """Number of outputs in a panel of a packed matrix."""

    def new(self, ctype: str, fields: object = None) -> Any:
        """A structure or array; fields that are not given are 0."""
        return self.ffi.new(ctype, fields)


def check(result: int) -> int:
    """The result of a function of the library, unless it is an error."""
    if result >= 0:
        return result
    if result == OUT_OF_MEMORY:
        raise MemoryError("the native kernels ran out of memory. Use a smaller batch or model.")
    raise RuntimeError(f"the native kernels failed with an unexpected C++ exception ({result}).")


def address(x: Tensor | None) -> int:
    """Of the first number; 0, a null pointer, for None."""
    return 0 if x is None else x.data_ptr()


@functools.cache
def native() -> Native | None:
    """The library; None if it is switched off, or not available, which is logged once."""
    try:
        return None if is_disabled() else load(library_path())
    except VariableError as error:
        raise UsageError(str(error)) from None
    except (BuildError, OSError) as error:
        log.warning(
            "native kernels are not available (%s): generation is more than 10 times slower "
            "and uses more than twice the memory. %s",
            error,
            getattr(error, "remedy", BuildError.remedy),
        )
        return None


def set_num_threads(count: int) -> None:
    """Set the number of threads of parallel regions that the calling thread starts. With the
    library, other threads keep theirs: torch.set_num_threads also sets it for new ones."""
    library = native()
    if library is None:
        torch.set_num_threads(count)
    else:
        check(library.lib.weft_set_num_threads(count))


def set_throttled(is_on: bool) -> None:
    """Let threads sleep at barriers almost at once, or as GOMP_SPINCOUNT says. Without the library
    there is no such switch."""
    library = native()
    if library is not None:
        check(library.lib.weft_set_throttled(is_on))


def openmp_libraries() -> list[str]:
    """Paths of the OpenMP libraries in this process. More than one: each has its own threads, which
    wait for CPUs that the others hold."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return list(dict.fromkeys(OPENMP_FILE.findall(maps)))


def load(path: Path) -> Native:
    ffi = cffi.FFI()
    ffi.cdef(declarations((SOURCE_FOLDER / HEADER).read_text(encoding="utf-8")))
    lib = ffi.dlopen(str(path))
    return Native(ffi, lib, lib.weft_panel_width())


def declarations(header: str) -> str:
    """The marked part of the header, with addresses of numbers as integers."""
    marked = DECLARATIONS.search(header)
    assert marked is not None, f"{HEADER} has no part for cffi"
    return NUMBER_POINTER.sub("uintptr_t ", marked[1])
