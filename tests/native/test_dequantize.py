"""The way back from panels: whole or by rows, every bit as it was."""

from __future__ import annotations

import pytest
import torch

from tests.native.test_packed import blocks
from weft.core.quantized import dequantize_blocks
from weft.native import packed as module
from weft.native.kernels import embedding_rows
from weft.native.packed import dequantize, pack, pack_blocks

OUTPUTS = (1, 5, 31, 32, 33, 64, 77)


@pytest.mark.parametrize("outputs", OUTPUTS)
def test_floats_come_back_bit_for_bit(outputs: int) -> None:
    weight = torch.randn(outputs, 19)
    weight[0, :4] = torch.tensor([-0.0, torch.inf, 1e-42, torch.nan])
    result = dequantize(pack(weight))
    assert result.view(torch.int32).equal(weight.view(torch.int32))
    assert result.is_contiguous() and result.untyped_storage().nbytes() == weight.nbytes


@pytest.mark.parametrize("outputs", OUTPUTS)
@pytest.mark.parametrize("bits", [4, 8])
def test_few_bits_come_back_as_they_are_dequantized(bits: int, outputs: int) -> None:
    inputs = blocks(bits, outputs)
    expected = dequantize_blocks(*inputs)
    packed = pack_blocks(*inputs)
    assert packed.kind == f"q{bits}"
    assert dequantize(packed).view(torch.int32).equal(expected.view(torch.int32))
    ids = torch.randint(outputs, (2, 3))
    assert embedding_rows(packed, ids).equal(expected[ids])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_rows_are_those_of_the_weight(dtype: torch.dtype) -> None:
    weight = torch.randn(77, 19)
    ids = torch.arange(77).flip(0).to(dtype)
    assert embedding_rows(pack(weight), ids).equal(weight.flip(0))
    assert embedding_rows(pack(weight), ids[3]).equal(weight[73])


def test_without_the_library_it_is_the_weight_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "native", lambda: None)
    weight = torch.randn(5, 4)
    assert dequantize(pack(weight)).data_ptr() == weight.data_ptr()
    assert embedding_rows(pack(weight), torch.tensor([4, 1])).equal(weight[[4, 1]])
