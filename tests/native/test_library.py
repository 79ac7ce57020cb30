"""The library as cffi loads it from the header: declarations, and errors of C++."""

from __future__ import annotations

import os
import re

import pytest

from weft.native.compiler import SOURCE_FOLDER
from weft.native.library import HEADER, Native, check, declarations, native

pytestmark = pytest.mark.skipif(native() is None, reason="needs the compiled kernels")


@pytest.fixture
def library() -> Native:
    loaded = native()
    assert loaded is not None
    return loaded


def test_addresses_of_numbers_are_integers_and_those_of_structures_are_typed() -> None:
    header = """
// ---- cffi: begin
int64_t f(const WeftNorm* norm, const float* x, double* y, WeftLayerPass* const* passes);
// ---- cffi: end
int64_t not_declared(void);
"""
    expected = (
        "int64_t f(const WeftNorm* norm, uintptr_t x, uintptr_t y, WeftLayerPass* const* passes);"
    )
    assert declarations(header).strip() == expected


def test_every_declared_function_is_exported(library: Native) -> None:
    header = declarations((SOURCE_FOLDER / HEADER).read_text())
    names = re.findall(r"^int64_t (weft_\w+)\(", header, re.MULTILINE)
    assert len(names) == 18
    assert all(callable(getattr(library.lib, name)) for name in names)


def test_fields_that_are_not_given_are_zero(library: Native) -> None:
    norm = library.new("WeftNorm*", (7, 0, True))
    assert (norm.weight, norm.bias, norm.is_centered, norm.eps, norm.offset) == (7, 0, 1, 0.0, 0.0)
    layer = library.new("WeftPlacedLayer*")
    assert layer.layer == library.ffi.NULL and layer.k == 0


@pytest.mark.skipif(
    os.environ.get("WEFT_ISA") == "sanitize",
    reason="the address sanitizer ends the process instead of throwing bad_alloc",
)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("is_backward", [False, True])
def test_running_out_of_memory_is_one_error(
    library: Native, threads: int, is_backward: bool
) -> None:
    """2^48 floats for transposed keys cannot be allocated, in any thread; no head is computed."""
    call = library.new("WeftShortAttention*")
    call.batch, call.heads, call.queries = 3, 2, 1
    call.keys, call.head_size, call.threads = 2**40, 2**8, threads
    with pytest.raises(MemoryError, match="ran out of memory. Use a smaller batch"):
        check(library.lib.weft_short_attention(call, is_backward))


def test_results_pass_and_other_errors_are_raised() -> None:
    assert check(0) == 0 and check(17) == 17
    with pytest.raises(RuntimeError, match=r"unexpected C\+\+ exception \(-2\)"):
        check(-2)
