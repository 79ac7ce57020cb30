"""The sample of a corpus: bounded in bytes, even, and a function of the seed."""

import pytest

from weft.text.spool import MAX_PIECE, LineSpool


def kept(lines, max_bytes, seed=0):
    with LineSpool(max_bytes, seed) as spool:
        spool.fill(lines)
        assert list(spool) == list(spool), "a sample can be read more than once"
        return list(spool), spool


def test_everything_is_kept_in_order_while_it_fits():
    lines = [f"line {i} \u6211\nwith a break" for i in range(50)]
    found, spool = kept(lines, max_bytes=10_000)
    assert found == lines
    assert (spool.seen_lines, spool.kept_records, spool.was_thinned) == (50, 50, False)


def test_a_sample_is_bounded_ordered_and_said():
    lines = [f"{i:06d}" for i in range(20_000)]
    found, spool = kept(lines, max_bytes=6_000)
    assert sum(map(len, found)) <= 6_000
    assert found == sorted(found)
    assert spool.was_thinned
    assert spool.seen_lines == 20_000
    assert spool.kept_records == len(found)


def test_a_sample_is_drawn_evenly_from_the_whole_corpus():
    """Every tenth of the corpus is a tenth of the sample, give or take 4 standard deviations."""
    lines = [f"{i:06d}" for i in range(40_000)]
    found, _ = kept(lines, max_bytes=12_000)
    share = 1 / 10
    spread = 4 * (share * (1 - share) / len(found)) ** 0.5
    for tenth in (0, 5, 9):
        count = sum(tenth * 4_000 <= int(line) < (tenth + 1) * 4_000 for line in found)
        assert count / len(found) == pytest.approx(share, abs=spread)


def test_the_same_seed_draws_the_same_lines_and_another_seed_draws_others():
    lines = [f"{i:06d}" for i in range(5_000)]
    first, again, other = (kept(lines, 3_000, seed)[0] for seed in (1, 1, 2))
    assert first == again != other


def test_a_line_longer_than_the_whole_sample_is_kept_in_parts():
    line = "x" * (MAX_PIECE * 5 + 3)
    found, _ = kept([line], max_bytes=MAX_PIECE * 2)
    assert 0 < len(found) <= 2
    assert all(set(part) == {"x"} and len(part) <= MAX_PIECE for part in found)
