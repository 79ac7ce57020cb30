"""Schedules: every allowed pair is computed exactly once, and work without pairs is not done."""

import gc
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.kv_spec import DenseView
from weft.nn.attention.base import AttentionCall
from weft.nn.attention.kernels import KERNELS, dispatch
from weft.nn.attention.kernels.sparse import schedule, tiles
from weft.nn.attention.kernels.sparse.schedule import make_schedule, schedule_of
from weft.nn.attention.kernels.sparse.tiles import split_by_step
from weft.nn.attention.masks import (
    Causal,
    Documents,
    Full,
    Global,
    Grid,
    Padding,
    Strided,
    Window,
    dense,
    dilated,
    strided,
)

CPU = torch.device("cpu")
B, S = 2, 29


def grid(T=S, S=S, start=0, B=B):
    return Grid(B, T, S, start, CPU)


def computed(mask, grid):
    """How often each pair is computed by the schedule."""
    plan = make_schedule(mask, grid)
    count = torch.zeros(grid.B * grid.T + 1, grid.B * grid.S + 1, dtype=torch.long)
    for number, call in enumerate(plan.calls):
        allowed = plan.tile_mask(number, mask)
        shape = (*call.q_rows.index_BT.shape, call.k_rows.index_BT.shape[1])
        one = torch.ones(shape, dtype=torch.long) if allowed is None else allowed.allowed_BTS.long()
        rows, columns = (
            call.q_rows.index_BT[:, :, None].expand(shape),
            call.k_rows.index_BT[:, None].expand(shape),
        )
        count.index_put_((rows, columns), one.expand(shape), accumulate=True)
    blocks = count[:-1, :-1].view(grid.B, grid.T, grid.B, grid.S)
    assert all((blocks[b, :, c] == 0).all() for b in range(grid.B) for c in range(grid.B) if b != c)
    return torch.stack([blocks[b, :, b] for b in range(grid.B)])


masks = st.recursive(
    st.sampled_from(
        [
            Full(),
            Causal(),
            Window(4),
            Strided(3),
            Strided(5),
            Global((0, 17)),
            Padding(torch.tensor([0, 13])),
            Documents(torch.arange(S).expand(B, S) // 9),
        ]
    ),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda two: two[0] & two[1]),
        st.tuples(inner, inner).map(lambda two: two[0] | two[1]),
        inner.map(lambda mask: ~mask),
    ),
    max_leaves=5,
)


@given(masks, st.sampled_from([(29, 0), (8, 21), (1, 28), (12, 5), (7, (2, 15))]))
@settings(max_examples=60, deadline=None)
def test_every_allowed_pair_is_computed_exactly_once(mask, queries):
    T, start = queries
    where = grid(T=T, start=start)
    original, tiles.TILE = tiles.TILE, 8
    try:
        count = computed(mask, where)
    finally:
        tiles.TILE = original
    assert count.equal(dense(mask, where).allowed_BTS.expand(B, T, S).long())


@given(masks)
@settings(max_examples=60, deadline=None)
def test_the_parts_of_a_mask_are_disjoint_and_cover_it(mask):
    total = torch.zeros(B, S, S, dtype=torch.long)
    for part in split_by_step(mask):
        total += dense(part.mask & Strided(part.step), grid()).allowed_BTS.long()
    assert total.equal(dense(mask, grid()).allowed_BTS.expand(B, S, S).long())


@pytest.mark.parametrize(
    ("mask", "steps"),
    [
        (Window(3) & Causal(), [1]),
        (dilated(4, 3) & Causal(), [3]),
        (strided(6) & Causal(), [1, 6]),
        (Strided(4), [4]),
        ((Window(3) | Strided(4) | Strided(6)) & Causal(), [1, 4, 6]),
        (~Strided(4), [1]),
    ],
)
def test_a_mask_falls_into_parts_by_the_steps_it_takes(mask, steps):
    assert [part.step for part in split_by_step(mask)] == steps


def pairs(mask, length):
    return sum(call.pairs for call in make_schedule(mask, grid(T=length, S=length, B=1)).calls)


@pytest.mark.parametrize(
    "mask",
    [
        Window(256) & Causal(),
        dilated(256, 4) & Causal(),
        (Window(256) | Global(16)) & Causal(),
        Window(256),
    ],
)
def test_work_grows_linearly_with_the_length(mask):
    # four times the length; the first tiles have fewer keys, which counts for more in the shorter
    assert pairs(mask, 16384) <= 4.5 * pairs(mask, 4096)
    assert pairs(mask, 16384) <= 16384 * 3 * 512


def test_strided_work_grows_far_less_than_squared():
    """At stride sqrt(n) a query sees about 2 sqrt(n) keys; tiles of 128 at most double that."""
    mask = strided(128) & Causal()
    assert pairs(mask, 16384) <= 16384 * 4 * 128


def test_tiles_at_the_same_distance_share_one_small_matrix():
    plan = make_schedule(Window(256) & Causal(), grid(T=16384, S=16384, B=1))
    sizes = [mask.allowed_BTS.numel() for mask in plan.masks.values() if mask]
    assert sum(sizes) < 2**22


def test_a_schedule_is_made_once_and_does_not_keep_its_mask_alive():
    mask = Window(3) & Causal()
    assert schedule_of(mask, grid()) is schedule_of(mask, grid())
    gone = weakref.ref(mask)
    gc.disable()
    try:
        del mask
        assert gone() is None, "mask and schedule hold each other"
    finally:
        gc.enable()


def test_masks_beyond_the_budget_are_computed_again(monkeypatch):
    monkeypatch.setattr(schedule, "MAX_CACHED_PAIRS", 0)
    mask = Window(3) & Causal()
    assert not any(make_schedule(mask, grid()).masks.values())
    assert computed(mask, grid()).equal(dense(mask, grid()).allowed_BTS.expand(B, S, S).long())


def test_auto_uses_tiles_only_where_they_pay_off(monkeypatch):
    monkeypatch.setattr(tiles, "TILE", 8)
    monkeypatch.setattr(dispatch, "MIN_PAIRS", 4000)
    chosen = []
    monkeypatch.setattr(dispatch, "sparse_attention", lambda call: chosen.append("sparse"))
    monkeypatch.setattr(dispatch, "flash_attention", lambda call: chosen.append("flash"))
    q, short = torch.zeros(1, 64, 1, 4), torch.zeros(1, 32, 1, 4)
    for x, mask in ((q, Window(3)), (q, ~Window(3)), (q, Causal()), (q, None), (short, Window(3))):
        KERNELS["auto"](AttentionCall(x, DenseView(x, x), mask))
    assert chosen == ["sparse", "flash", "flash", "flash", "flash"]
