"""Several threads give the bits of one, at sizes where they share the work of a call.

Below these sizes the kernels run on the calling thread alone. Each comparison is repeated: a
missing barrier shows only when one thread is late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engine.asking import beam_search
from tests.engine.tiny import tiny
from tests.native.test_packed import blocks
from tests.nn.attention.test_paged_attention import case
from weft.native.attention_kernels import PagedAttentionParams
from weft.native.kernels import linear
from weft.native.library import native
from weft.native.packed import PackedMatrix, pack, pack_blocks
from weft.nn.attention.paged_attention import paged_attention

pytestmark = pytest.mark.skipif(native() is None, reason="needs the compiled kernels")

THREADS = (2, 3)
REPEATS = 3


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def assert_threads_change_nothing(compute: Callable[[], list[Any]]) -> None:
    torch.set_num_threads(1)
    expected = compute()
    for number in THREADS * REPEATS:
        torch.set_num_threads(number)
        assert all(
            a.equal(b) if isinstance(a, Tensor) else a == b
            for a, b in zip(compute(), expected, strict=True)
        ), f"{number} threads"


def weights() -> dict[str, PackedMatrix]:
    quantized = {f"q{bits}": pack_blocks(*blocks(bits, 401, 992)) for bits in (4, 8)}
    int8 = {f"{name} int8": replace(q, int8_activations=True) for name, q in quantized.items()}
    return {"f32": pack(torch.randn(401, 992)), **quantized, **int8}


@pytest.mark.parametrize("rows", [1, 5, 700])
@pytest.mark.parametrize("kind", ["f32", "q4", "q8", "q4 int8", "q8 int8"])
def test_products(kind: str, rows: int) -> None:
    weight, x, bias = weights()[kind], torch.randn(rows, 992), torch.randn(401)
    with torch.inference_mode():
        assert_threads_change_nothing(lambda: [linear(x, weight, bias)])


@pytest.mark.parametrize("shared", [0, 80])
@pytest.mark.parametrize("lengths", [[(300, 1)] * 24, [(90, 90), (400, 33), (250, 1)]], ids=str)
def test_attention_over_pages(lengths: list[tuple[int, int]], shared: int) -> None:
    q_NHC, view = case(lengths, H=8, K=4, C=32, U=32, shared=shared)
    params = PagedAttentionParams(32**-0.5)
    with torch.inference_mode():
        assert_threads_change_nothing(lambda: list(paged_attention(q_NHC, view, params)))


LAYERS: dict[str, dict[str, Any]] = {
    "before": {"norm": {"kind": "rmsnorm"}, "position": {"kind": "rotary"}},
    "after": {"norm": {"placement": "after"}},
    "both": {"norm": {"kind": "rmsnorm", "placement": "both"}, "feedforward": {"kind": "swiglu"}},
    "qk_norm": {"attention": {"kind": "gqa", "num_heads": 8, "num_kv_heads": 2, "qk_norm": True}},
}


@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, kind: str) -> None:
    """Prefill and decode steps of 20 beam searches: the scores hold every bit of every layer."""
    heads = {"attention": {"kind": "mha", "num_heads": 4}}
    model = tiny(kind, width=96, num_layers=4, max_len=80, **{**heads, **LAYERS[name]}).model
    sources = [[5 + i, *range(30 - i, 50 - i)] for i in range(20)]
    prompts = [[1, 7 + i] for i in range(20)] if kind == "encoder-decoder" else sources
    encoder = sources if kind == "encoder-decoder" else None

    def scores() -> list[float]:
        result = beam_search(model, prompts, 6, beam=3, num_best=3, sources=encoder)
        return [hypothesis.score for each in result for hypothesis in each]

    assert_threads_change_nothing(scores)
