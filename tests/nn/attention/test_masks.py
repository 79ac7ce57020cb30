"""Masks: each means what it says, and the bounds of a rectangle never contradict its pairs."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.errors import UsageError
from weft.core.kv_spec import DenseView
from weft.nn.attention.masks import (
    And,
    Blocks,
    Causal,
    Documents,
    Full,
    Global,
    Grid,
    Not,
    Or,
    Padding,
    Prefix,
    Strided,
    Window,
    all_of,
    dense,
    dilated,
    strided,
)
from weft.nn.attention.masks.dense import MAX_CACHED
from weft.nn.attention.masks.kinds import RangeExtremes, log2_floor

B, S = 2, 7
DOCUMENTS = torch.tensor([[0, 0, 1, 1, 1, 2, 2], [1, 3, 3, 5, 5, 5, 5]])
SHUFFLED = torch.tensor([[0, 0, 1, 1, 0, 2, 2], [5, 3, 3, 5, 5, 5, 1]])
BLOCKS = torch.tensor([[True, False], [True, True], [False, False]])

# each mask beside the sentence that it stands for
ATOMS = {
    "full": (Full(), lambda b, q, k: True),
    "causal": (Causal(), lambda b, q, k: k <= q),
    "window": (Window(3), lambda b, q, k: abs(q - k) < 3),
    "strided": (Strided(3), lambda b, q, k: (q - k) % 3 == 0),
    "step of one": (Strided(1), lambda b, q, k: True),
    "first tokens": (Global(2), lambda b, q, k: q < 2 or k < 2),
    "chosen tokens": (Global((1, 2, 5)), lambda b, q, k: q in (1, 2, 5) or k in (1, 2, 5)),
    "documents": (Documents(DOCUMENTS), lambda b, q, k: DOCUMENTS[b, q] == DOCUMENTS[b, k]),
    "shuffled": (Documents(SHUFFLED), lambda b, q, k: SHUFFLED[b, q] == SHUFFLED[b, k]),
    "padding": (Padding(torch.tensor([0, 4])), lambda b, q, k: k < [0, 4][b]),
    "prefix": (Prefix(torch.tensor([3, 1])), lambda b, q, k: k < [3, 1][b]),
    "blocks": (Blocks(BLOCKS, 2), lambda b, q, k: q < 6 and k < 4 and bool(BLOCKS[q // 2, k // 2])),
}


def matrix(mask):
    grid = Grid(B, S, S, 0, torch.device("cpu"))
    return dense(mask, grid).allowed_BTS.expand(B, S, S)


def rectangles():
    """All rectangles of slots, as four vectors of ends."""
    spans = [(lo, hi) for lo in range(S) for hi in range(lo, S)]
    ends = torch.tensor([(*q, *k) for q, k in itertools.product(spans, spans)])
    return ends.unbind(dim=1)


def some_and_all(mask):
    """(some pair, every pair) of each rectangle, by looking at every pair."""
    counts = torch.nn.functional.pad(matrix(mask).long().cumsum(1).cumsum(2), (1, 0, 1, 0))
    q_lo, q_hi, k_lo, k_hi = rectangles()
    top, bottom, left, right = q_lo, q_hi + 1, k_lo, k_hi + 1
    inside = counts[:, bottom, right] - counts[:, top, right] - counts[:, bottom, left]
    inside = inside + counts[:, top, left]
    return inside > 0, inside == (bottom - top) * (right - left)


@pytest.mark.parametrize("name", ATOMS)
def test_a_mask_allows_what_its_sentence_says(name):
    mask, sentence = ATOMS[name]
    pairs = itertools.product(range(B), range(S), range(S))
    expected = torch.tensor([bool(sentence(b, q, k)) for b, q, k in pairs]).view(B, S, S)
    assert matrix(mask).equal(expected)


@pytest.mark.parametrize("name", sorted(ATOMS.keys() - {"shuffled"}))
def test_the_bounds_of_a_single_mask_are_exact_for_every_rectangle(name):
    mask = ATOMS[name][0]
    nonempty, full = mask.bounds(*rectangles())
    assert nonempty.shape == full.shape and nonempty.shape[0] in (1, B)
    some, every = some_and_all(mask)
    assert nonempty.expand(B, -1).equal(some)
    assert full.expand(B, -1).equal(every)


combinations = st.recursive(
    st.sampled_from([mask for mask, _ in ATOMS.values()]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda two: two[0] & two[1]),
        st.tuples(inner, inner).map(lambda two: two[0] | two[1]),
        inner.map(lambda mask: ~mask),
    ),
    max_leaves=6,
)


@given(combinations)
@settings(max_examples=60, deadline=None)
def test_bounds_of_combinations_never_promise_what_pairs_break(mask):
    nonempty, full = mask.bounds(*rectangles())
    some, every = some_and_all(mask)
    assert not (some & ~nonempty).any(), "a tile with work would be skipped"
    assert not (full & ~every).any(), "a forbidden pair would be computed"


def test_bounds_broadcast_over_a_grid_of_tiles():
    lo, hi = torch.tensor([0, 3, 5]), torch.tensor([2, 4, 6])
    grid = torch.broadcast_tensors(lo[:, None], hi[:, None], lo, hi)
    for mask, _ in ATOMS.values():
        result = mask.bounds(lo[:, None], hi[:, None], lo, hi)
        for one, other in zip(result, mask.bounds(*grid), strict=True):
            assert one.shape[1:] == (3, 3) and one.equal(other)


def test_combining_flattens_and_drops_what_says_nothing():
    a, b, c = Causal(), Window(2), Strided(3)
    joined = (a & b) & c
    assert isinstance(joined, And) and joined.masks == (a, b, c)
    either = a | (b | c)
    assert isinstance(either, Or) and either.masks == (a, b, c)
    assert (Full() & a) is a and isinstance(Full() | a, Full)
    assert ~~a is a and isinstance(~a, Not)


def test_all_of_leaves_out_what_is_not_given():
    a, b = Causal(), Window(2)
    assert all_of() is None and all_of(None) is None and all_of(None, a) is a
    joined = all_of(a, None, b)
    assert isinstance(joined, And) and joined.masks == (a, b)


def test_patterns_are_the_patterns_of_their_papers():
    q, k = torch.arange(S)[:, None], torch.arange(S)
    distance = (q - k).abs()
    assert matrix(Window(3))[0].equal(distance < 3)
    assert matrix(dilated(2, 3))[0].equal((distance == 0) | (distance == 3))
    assert matrix(strided(3))[0].equal((distance < 3) | (distance % 3 == 0))
    assert matrix(Global(1))[0].equal((q == 0) | (k == 0))
    assert matrix(Causal() | Prefix(torch.tensor([0, 4])))[1].equal((k <= q) | (k < 4))


def test_a_matrix_is_made_once_for_all_layers_of_a_pass():
    class Counting(Window):
        calls = 0

        def allows(self, b, q, k):
            Counting.calls += 1
            return super().allows(b, q, k)

    mask, grid = Counting(3), Grid(B, S, S, 0, torch.device("cpu"))
    first = dense(mask, grid)
    assert dense(mask, Grid(B, S, S, 0, torch.device("cpu"))) is first
    assert Counting.calls == 1
    for start in range(20):  # a decoding run: the cache stays small
        dense(mask, Grid(B, 1, S, start, torch.device("cpu")))
    assert len(mask._cache) == MAX_CACHED


def test_a_grid_knows_where_the_queries_of_each_row_stand():
    k = torch.zeros(B, S, 1, 4)
    q = torch.zeros(B, 3, 1, 4)
    assert Grid.of(q, DenseView(k, k, 4)).q_BT.tolist() == [[4, 5, 6]]
    assert Grid.of(q, DenseView(k, k, torch.tensor([4, 4]))).start == 4
    uneven = Grid.of(q, DenseView(k, k, torch.tensor([1, 4])))
    assert uneven.q_BT.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert dense(Causal(), uneven).allowed_BTS.sum(dim=-1).tolist() == [[2, 3, 4], [5, 6, 7]]


def test_a_dense_mask_knows_its_empty_queries_and_whether_it_says_anything():
    grid = Grid(B, 3, S, 0, torch.device("cpu"))
    padded = dense(Padding(torch.tensor([0, 4])), grid)
    assert padded.empty_BT is not None
    assert padded.empty_BT.tolist() == [[True] * 3, [False] * 3]
    added = padded.additive_B1TS(torch.float64)
    assert added.shape == (B, 1, 3, S) and added.dtype == torch.float64
    assert added[1, 0, 0].tolist() == [0.0] * 4 + [-torch.inf] * 3
    assert dense(Padding(torch.tensor([S, S])), grid).is_full
    assert dense(Causal(), grid).empty_BT is None and not dense(Causal(), grid).is_full


def test_range_extremes_equal_a_search_of_every_range():
    values = torch.randint(0, 9, (2, 11), generator=torch.Generator().manual_seed(1))
    extremes = RangeExtremes(values)
    for lo, hi in itertools.combinations_with_replacement(range(11), 2):
        least, most = extremes(torch.tensor(lo), torch.tensor(hi))
        assert least.equal(values[:, lo : hi + 1].amin(dim=1))
        assert most.equal(values[:, lo : hi + 1].amax(dim=1))


def test_log2_floor_is_exact_at_powers_of_two():
    numbers = [1, 2, 3, 4, 7, 8, 9, 2**40 - 1, 2**40]
    assert log2_floor(torch.tensor(numbers)).tolist() == [n.bit_length() - 1 for n in numbers]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Window(0), "window size is 0"),
        (lambda: Strided(-2), "step is -2"),
        (lambda: Blocks(torch.ones(2, 2), 4), "torch.float32"),
        (lambda: Blocks(torch.ones(2, 2, dtype=torch.bool), 0), "and 0"),
    ],
)
def test_a_mask_that_makes_no_sense_is_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()
