"""NextTokenLogits: the best ids are the same with the logits and without them."""

from __future__ import annotations

import pytest
import torch

from weft.engine.logits import NextTokenLogits
from weft.nn.config import LMHeadConfig, NormConfig
from weft.nn.lm_head import LMHead
from weft.nn.packed_modules import PackedLMHead, pack_model

V, D, N = 90, 24, 40
BANNED = [{}, {(3, 80): list(range(N))}, {(3,): [0, 5], (7, 8): [1, 2]}, {(3,): []}]


@pytest.fixture
def head() -> LMHead:
    torch.manual_seed(1)
    head = LMHead(LMHeadConfig(bias=True), torch.nn.Embedding(V, D), NormConfig(), tied=True)
    packed = pack_model(head.eval())
    assert isinstance(packed, PackedLMHead)
    return packed


@pytest.mark.parametrize("banned", BANNED, ids=str)
def test_both_ways_find_the_same(head, banned):
    x_ND = torch.randn(N, D)
    short, long = NextTokenLogits(head, x_ND), NextTokenLogits(head, x_ND)
    logits_NV = long.logits_NV.clone()
    for ours, theirs in zip(short.top_k(4, banned), long.top_k(4, banned), strict=True):
        assert ours.tolist() == theirs.tolist()
    assert torch.equal(long.logits_NV, logits_NV), "bans change what others read"
    for ids, rows in banned.items():
        result = short.top_k(4, banned)[1][rows]
        assert not set(ids) & set(result.ravel().tolist())


def test_some_places_are_those_of_all(head):
    logits = NextTokenLogits(head, torch.randn(N, D))
    assert logits.select(range(N)) is logits
    some = logits.select([4, 9])
    assert torch.equal(some.logits_NV, logits.logits_NV[[4, 9]])
    assert torch.equal(logits.select([4, 9]).logits_NV, some.logits_NV)


def test_one_token_is_what_it_is_among_all(head):
    logits, rows = NextTokenLogits(head, torch.randn(N, D)), [3, 20, 39]
    alone = logits.logits_of(77, rows)
    assert alone.tolist() == logits.logits_NV[rows, 77].double().tolist()
    assert alone.tolist() == logits.logits_of(77, rows).tolist()
