"""Attention over pages: right, and the same bits for a query however its call is put together."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from weft.core.kv_spec import PagedView, PageLayout
from weft.native import attention_kernels
from weft.native.attention_kernels import PagedAttentionParams
from weft.nn.attention import paged_attention as paged
from weft.nn.attention.base import AttentionCall, Mask
from weft.nn.attention.masks import (
    Blocks,
    Causal,
    Global,
    MaskBase,
    Window,
    dilated,
    strided,
)
from weft.nn.attention.paged_attention import distance_table
from weft.nn.positions.alibi import AlibiBias, slopes
from weft.nn.positions.base import Bias
from weft.nn.positions.shaw import ShawBias
from weft.nn.positions.t5_bias import BucketBias, BucketRule

LENGTHS = [(100, 1), (37, 5), (70, 70), (1, 1), (64, 33), (33, 2)]
"""Keys and new tokens of each sequence."""


@pytest.fixture(params=["native", "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """By the library and by torch."""
    if request.param == "torch":
        monkeypatch.setattr(attention_kernels, "native", lambda: None)
    return request.param


def paged_attention(q_NHC: Tensor, view: PagedView, **params) -> tuple[Tensor, Tensor]:
    return paged.paged_attention(
        q_NHC, view, PagedAttentionParams(q_NHC.shape[-1] ** -0.5, **params)
    )


def numbers(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def make_table(lengths: list[tuple[int, int]], R: int, shared: int) -> Tensor:
    """Pages in no order; all sequences begin with the first `shared` slots of the first one."""
    counts = [-(-length // R) for length, _ in lengths]
    pages = iter((torch.randperm(sum(counts)) + 1).tolist())
    table = torch.zeros(len(lengths), max(counts), dtype=torch.int32)
    for b, count in enumerate(counts):
        for p in range(count):
            is_shared = b > 0 and (p + 1) * R <= min(shared, lengths[b][0], lengths[0][0])
            table[b, p] = table[0, p] if is_shared else next(pages)
    return table


def case(
    lengths=LENGTHS, H=6, K=2, C=16, U=16, R=16, shared=0, latent=False
) -> tuple[Tensor, PagedView]:
    """Queries and pages. Rows that hold no key hold NaN: whoever reads them is found out."""
    table_BP = make_table(lengths, R, shared)
    num = int(table_BP.max()) + 2
    k_PRKC = torch.full((num, R, K, C), torch.nan)
    v_PRKU = k_PRKC[..., :U] if latent else torch.full((num, R, K, U), torch.nan)
    for b, (length, _) in enumerate(lengths):
        slots = torch.arange(length)
        place = table_BP[b, slots // R].long(), slots % R
        k_PRKC[place] = torch.randn(length, K, C)
        if not latent:
            v_PRKU[place] = torch.randn(length, K, U)
    new = [count for _, count in lengths]
    layout = PageLayout(
        offsets=numbers(0, *torch.tensor(new).cumsum(0).tolist()),
        starts_B=numbers(*(length - count for length, count in lengths)),
        lengths_B=numbers(*(length for length, _ in lengths)),
        table_BP=table_BP,
    )
    return torch.randn(sum(new), H, C), PagedView(k_PRKC, v_PRKU, layout)


def exact(
    q_NHC: Tensor, view: PagedView, is_causal=True, window=None, softcap=None, bias_HM=None
) -> tuple[Tensor, Tensor]:
    """The same in float64, query by query and from the formula."""
    (N, H, C), (_, R, K, U) = q_NHC.shape, view.v_PRKU.shape
    out, lse = torch.zeros(N, H, U).double(), torch.full((N, H), -torch.inf).double()
    layout = view.layout
    for b, length in enumerate(layout.lengths_B.tolist()):
        begin, end = layout.offsets[b : b + 2].tolist()
        for n in range(begin, end):
            slot = int(layout.starts_B[b]) + n - begin
            s = torch.arange(length)
            s = s[s <= slot] if is_causal else s
            s = s if window is None else s[(slot - s).abs() < window]
            if len(s) == 0:
                continue
            place = layout.table_BP[b, s // R].long(), s % R
            k, v = (
                x[place].double().repeat_interleave(H // K, 1) for x in (view.k_PRKC, view.v_PRKU)
            )
            scores = torch.einsum("hc,shc->hs", q_NHC[n].double(), k) * C**-0.5
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            if bias_HM is not None:
                zero = 0 if is_causal else (bias_HM.shape[1] - 1) // 2
                scores += bias_HM.double()[:, (slot - s + zero).clamp(0, bias_HM.shape[1] - 1)]
            lse[n] = scores.logsumexp(-1)
            out[n] = torch.einsum("hs,shu->hu", scores.softmax(-1), v)
    return out, lse


def assert_right(q_NHC: Tensor, view: PagedView, **rule) -> None:
    (out, lse), (right_out, right_lse) = (
        paged_attention(q_NHC, view, **rule),
        exact(q_NHC, view, **rule),
    )
    assert ((out - right_out).abs().max() / right_out.abs().max()) < 1e-5
    torch.testing.assert_close(lse.double(), right_lse, atol=1e-5, rtol=0)


SHAPES = {
    "groups of heads": {},
    "odd sizes": {"C": 19, "U": 13, "R": 5},
    "a page of one row": {"H": 3, "K": 3, "C": 8, "U": 24, "R": 1},
    "one key head, long pages": {"H": 4, "K": 1, "C": 64, "U": 64, "R": 64},
    "a shared prefix": {"H": 9, "K": 3, "C": 64, "U": 64, "shared": 64},
    "latent": {"H": 4, "K": 1, "C": 72, "U": 64, "latent": True},
}
RULES = {
    "a window": {"window": 9},
    "a softcap": {"softcap": 3.0},
    "all keys": {"is_causal": False},
    "a window on both sides": {"is_causal": False, "window": 7},
}


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_is_right(way: str, name: str) -> None:
    assert_right(*case(**SHAPES[name]))


@pytest.mark.parametrize("name", RULES)
def test_every_rule_is_right(way: str, name: str) -> None:
    assert_right(*case(), **RULES[name])


@pytest.mark.parametrize("M", [9, 100])
@pytest.mark.parametrize("is_causal", [True, False])
def test_a_bias_by_distance_is_right(way: str, M: int, is_causal: bool) -> None:
    bias_HM = torch.randn(6, M if is_causal else 2 * M - 1)
    assert_right(*case(), bias_HM=bias_HM, is_causal=is_causal)


def test_a_large_latent_is_right() -> None:
    assert_right(*case([(100, 1), (70, 3)], H=7, K=1, C=640, U=576, latent=True))


def test_a_query_without_allowed_keys_gets_zeros(way: str) -> None:
    q_NHC, view = case([(0, 3), (20, 4)])
    out, lse = paged_attention(q_NHC, view, is_causal=False)
    assert out[:3].eq(0).all()
    assert lse[:3].eq(-torch.inf).all()
    assert lse[3:].isfinite().all()


def alone(q_NHC: Tensor, view: PagedView, b: int, begin: int, end: int) -> tuple[Tensor, PagedView]:
    """Some of the new tokens of one sequence, when no later key is there yet."""
    layout, first = view.layout, int(view.layout.offsets[b])
    start = int(layout.starts_B[b])
    part = PageLayout(
        offsets=numbers(0, end - begin),
        starts_B=numbers(start + begin),
        lengths_B=numbers(start + end),
        table_BP=layout.table_BP[b : b + 1],
    )
    return q_NHC[first + begin : first + end], dataclasses.replace(view, layout=part)


@pytest.mark.parametrize("rule", [{}, {"window": 40}, {"softcap": 5.0}])
def test_a_prompt_in_pieces_has_the_bits_of_the_whole(way: str, rule: dict) -> None:
    q_NHC, view = case([(90, 90), (70, 65)], R=8)
    whole = paged_attention(q_NHC, view, **rule)
    for b, (first, last) in enumerate([(0, 90), (90, 155)]):
        for step in (1, 7, 32) if way == "native" else (13,):
            for n in range(first, last, step):
                end = min(n + step, last)
                part = paged_attention(*alone(q_NHC, view, b, n - first, end - first), **rule)
                assert all(x.equal(y[n:end]) for x, y in zip(part, whole, strict=True))


@pytest.mark.parametrize(
    "lengths", [[(100, 1)] * 9, [(100, 1), (90, 2), (64, 1), (120, 3), (81, 40)]]
)
def test_shared_pages_change_no_bit(way: str, lengths: list[tuple[int, int]]) -> None:
    """A tree: all share 48 slots, two of them 32 more."""
    q_NHC, view = case(lengths, shared=48)
    table_BP = view.layout.table_BP
    table_BP[1, 3:5] = table_BP[0, 3:5]
    together = paged_attention(q_NHC, view)
    for b, (_, new) in enumerate(lengths):
        some = slice(int(view.layout.offsets[b]), int(view.layout.offsets[b + 1]))
        part = paged_attention(*alone(q_NHC, view, b, 0, new))
        assert all(x.equal(y[some]) for x, y in zip(part, together, strict=True))


def test_a_last_page_that_two_lengths_share_is_read_by_each_as_far_as_it_goes(way: str) -> None:
    q_NHC, view = case([(45, 2), (41, 1), (45, 1)])
    view.layout.table_BP[1:] = view.layout.table_BP[0]
    together = paged_attention(q_NHC, view)
    assert_right(q_NHC, view)
    for b, some in enumerate([slice(0, 2), slice(2, 3), slice(3, 4)]):
        part = paged_attention(*alone(q_NHC, view, b, 0, some.stop - some.start))
        assert all(x.equal(y[some]) for x, y in zip(part, together, strict=True))


def test_pages_that_fell_out_of_the_window_are_not_read(way: str) -> None:
    q_NHC, view = case([(90, 3), (70, 1)])
    before = paged_attention(q_NHC, view, window=20)
    view.layout.table_BP[0, :4] = 0
    view.layout.table_BP[1, :3] = 0
    fresh = dataclasses.replace(view, layout=dataclasses.replace(view.layout))
    after = paged_attention(q_NHC, fresh, window=20)
    assert all(x.equal(y) for x, y in zip(before, after, strict=True))


@pytest.mark.parametrize("H, K, C", [(6, 2, 16), (7, 1, 17), (4, 1, 31)])
def test_threads_change_nothing(way: str, H: int, K: int, C: int) -> None:
    lengths = [(300, 40 if way == "native" else 3), (280, 1), (290, 1)]
    q_NHC, view = case(lengths, H=H, K=K, C=C, U=C, shared=64)
    threads, masks = torch.get_num_threads(), (Causal(), strided(5) & Causal())
    results = []
    try:
        for number in (1, 2, 3, 4):
            torch.set_num_threads(number)
            results.append([x for mask in masks for x in by_mask(q_NHC, view, mask)])
    finally:
        torch.set_num_threads(threads)
    for result in results:
        assert all(x.equal(y) for x, y in zip(result, results[0], strict=True))


def test_queries_may_be_part_of_a_wider_tensor() -> None:
    q_NHC, view = case()
    wide = torch.randn(len(q_NHC), 10, 16)
    wide[:, 2:8] = q_NHC
    assert paged_attention(wide[:, 2:8], view)[0].equal(paged_attention(q_NHC, view)[0])


@pytest.mark.parametrize("is_causal", [True, False])
def test_the_tables_of_buckets_and_alibi_hold_the_bias_of_each_distance(is_causal: bool) -> None:
    rule = BucketRule(num_buckets=8, max_distance=20, is_bidirectional=not is_causal)
    reach, q, k_S = 30, 17, torch.arange(18 if is_causal else 40)
    for bias in (
        BucketBias(torch.randn(8, 6), rule),
        AlibiBias(slopes(6, torch.float32, torch.device("cpu")), is_causal),
    ):
        table_HM = distance_table(bias, reach, is_causal=is_causal)
        assert table_HM.shape == (6, reach if is_causal else 2 * reach - 1)
        right = bias.at(torch.zeros(1), torch.tensor([[q]]), k_S)[0, :, 0]
        zero = 0 if is_causal else reach - 1
        assert table_HM[:, q - k_S + zero].equal(right)


PATTERNS: dict[str, MaskBase] = {
    "strided": strided(5) & Causal(),
    "dilated": dilated(4, 3) & Causal(),
    "global": (Window(9) | Global(2)) & Causal(),
    "blocks": Blocks(torch.rand(7, 7, generator=torch.Generator().manual_seed(1)) < 0.5, 16)
    & Causal(),
    "window on both sides": Window(11),
}
SIZES = [(1, 1, 3, 3), (3, 3, 5, 5), (4, 2, 16, 16), (6, 2, 19, 13), (5, 1, 33, 31)]


class NoTable(Bias):
    """A bias that only torch can evaluate."""

    def __init__(self, bias: Bias) -> None:
        self.bias = bias

    def tensors(self) -> tuple[Tensor, ...]:
        return self.bias.tensors()

    def at(self, t_T: Tensor, q_BT: Tensor, k_S: Tensor, *tensors: Tensor) -> Tensor:
        return self.bias.at(t_T, q_BT, k_S, *tensors)


def shaw(q_NHC: Tensor, is_causal: bool, max_distance: int = 7) -> ShawBias:
    right = 0 if is_causal else max_distance
    scores_1NHM = torch.randn(1, *q_NHC.shape[:2], max_distance + 1 + right)
    return ShawBias(scores_1NHM, max_distance, right)


def by_mask(
    q_NHC: Tensor, view: PagedView, mask: Mask | None, bias: Bias | None = None
) -> tuple[Tensor, Tensor]:
    with torch.inference_mode():
        out_1NHU, lse_NH = paged.attend_pages(AttentionCall(q_NHC[None], view, mask, bias))
    return out_1NHU[0], lse_NH


def only_query(q_NHC: Tensor, view: PagedView, n: int) -> tuple[Tensor, PagedView]:
    """One query alone, its numbers elsewhere in memory."""
    b = int((view.layout.offsets[1:] <= n).sum())
    at = n - int(view.layout.offsets[b])
    q_1HC, one = alone(q_NHC, view, b, at, at + 1)
    one = dataclasses.replace(
        one, layout=dataclasses.replace(one.layout, lengths_B=view.layout.lengths_B[b : b + 1])
    )
    shifted = torch.empty(q_1HC.numel() + 5)[5:].view(q_1HC.shape)
    return shifted.copy_(q_1HC), one


@pytest.mark.parametrize("has_bias", [False, True], ids=["no bias", "shaw"])
@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_is_that_of_the_reference(name: str, has_bias: bool) -> None:
    mask = PATTERNS[name]
    for H, K, C, U in SIZES:
        q_NHC, view = case(H=H, K=K, C=C, U=U, R=8, shared=16)
        bias = shaw(q_NHC, paged.is_causal(mask)) if has_bias else None
        call = AttentionCall(q_NHC[None], view, mask, None if bias is None else NoTable(bias))
        (out, lse), (right_out, right_lse) = (
            by_mask(q_NHC, view, mask, bias),
            paged.attend_each_query(call),
        )
        torch.testing.assert_close(out, right_out[0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(lse, right_lse, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("has_bias", [False, True], ids=["no bias", "shaw"])
@pytest.mark.parametrize("name", [*PATTERNS, "causal", "all keys"])
def test_a_query_has_the_same_bits_alone_and_among_others(
    way: str, name: str, has_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mask = {**PATTERNS, "causal": Causal(), "all keys": None}[name]
    for H, K, C, U in SIZES:
        q_NHC, view = case(H=H, K=K, C=C, U=U, R=8, shared=16)
        bias = shaw(q_NHC, paged.is_causal(mask)) if has_bias else None
        together = by_mask(q_NHC, view, mask, bias)
        with monkeypatch.context() as patch:
            patch.setattr(paged, "MAX_MASK_NUMBERS", 1000)
            in_blocks = by_mask(q_NHC, view, mask, bias)
        assert all(x.equal(y) for x, y in zip(in_blocks, together, strict=True))
        for n in range(0, len(q_NHC), 9):
            own = None
            if bias is not None:
                own = dataclasses.replace(bias, scores_BTHM=bias.scores_BTHM[:, n : n + 1].clone())
            part = by_mask(*only_query(q_NHC, view, n), mask, own)
            assert all(x.equal(y[n : n + 1]) for x, y in zip(part, together, strict=True))


def test_other_dtypes_and_gradients_take_torch() -> None:
    q_NHC, view = case([(20, 3)])
    wide = dataclasses.replace(view, k_PRKC=view.k_PRKC.double(), v_PRKU=view.v_PRKU.double())
    out, lse = paged_attention(q_NHC.double(), wide)
    assert out.dtype == lse.dtype == torch.float64
    q_NHC.requires_grad_()
    paged_attention(q_NHC, view)[0].sum().backward()
    assert q_NHC.grad is not None
