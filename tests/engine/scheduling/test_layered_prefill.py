"""Chunks that several steps compute layer by layer: positions, and what is left of them."""

from __future__ import annotations

from array import array

import pytest

from weft.engine.layered_forward import select_tokens, spans_of
from weft.engine.scheduling.layered_prefill import BLOCK, LayeredPrefill
from weft.engine.scheduling.plan import Chunk, LayerRange, SequenceId
from weft.engine.scheduling.sequence import Request

LAYERS = 5


def chunk_of(name: str, start: int, length: int) -> Chunk:
    request, tokens = Request(name, (1, 2), 3), list(range(start, start + length))
    return Chunk(request, SequenceId(name, 0), start, tokens, 0, 1, [array("i")], None)


def layered_of(*lengths: int) -> LayeredPrefill:
    names = {f"r{number}": length for number, length in enumerate(lengths)}
    chunks = {name: [chunk_of(name, 100, length)] for name, length in names.items()}
    return LayeredPrefill(chunks, LAYERS)


@pytest.mark.parametrize("num_tokens", [1, 30, 47, 100, 1000])
@pytest.mark.parametrize("lengths", [(70,), (20, 3, 41), (5,)])
def test_each_layer_computes_each_token_once_and_in_order(num_tokens, lengths):
    layered, computed = layered_of(*lengths), [0] * sum(lengths)
    while True:
        part = layered.next_range(num_tokens, num_tokens)
        assert part.begin == layered.position < part.end
        for layers, tokens in spans_of(part):
            for row in tokens:
                assert computed[row] == layers.start
                computed[row] = layers.stop
            assert all(computed[row] >= layers.stop for row in range(tokens.stop))
        layered.position = part.end
        assert sum(computed) == part.end
        if part.is_last:
            break
        assert part.end % sum(lengths) % BLOCK == 0
        assert part.end - part.begin <= max(num_tokens, BLOCK)
    assert computed == [LAYERS] * sum(lengths)


def test_a_range_ends_with_a_layer_if_it_may():
    layered = layered_of(70)
    assert layered.next_range(60, 139).end == 70
    assert layered.next_range(71, 139).end == 70 + 32
    layered.position = 40
    assert layered.next_range(20, 40).end == 70
    assert layered.next_range(100, 170).end == 210


def test_a_range_is_at_most_three_calls():
    part = LayerRange([chunk_of("a", 0, 50)], 32, 4 * 50 + 16, LAYERS)
    assert [tuple(span) for span in spans_of(part)] == [
        (range(0, 1), range(32, 50)),
        (range(1, 4), range(50)),
        (range(4, 5), range(16)),
    ]


@pytest.mark.parametrize("position", [0, 10, 20, 33, 64, 64 + 21, 4 * 64 + 20, 4 * 64 + 63])
@pytest.mark.parametrize("name", ["r0", "r1", "r2"])
def test_the_position_of_the_others_stays_when_a_request_leaves(position, name):
    layered = layered_of(20, 3, 41)
    layered.position = position
    before = dict(zip(layered.chunks, layered.next_range(1, 1).num_computed(position), strict=True))
    layered.remove(name)
    layered.remove(name)
    assert name not in layered.chunks
    part = layered.next_range(1000, 1000)
    assert part.num_computed(part.begin) == [before[one] for one in layered.chunks]
    assert part.is_last


def test_tokens_of_several_chunks_are_selected():
    chunks = [chunk_of("a", 7, 4), chunk_of("b", 0, 3), chunk_of("c", 2, 9)]
    parts = select_tokens(chunks, range(2, 10))
    assert [(one.request.id, one.start, one.tokens) for one in parts] == [
        ("a", 9, [9, 10]),
        ("b", 0, [0, 1, 2]),
        ("c", 2, [2, 3, 4]),
    ]
