"""Pieces in the words of the side that writes. Stops: found across the borders of pieces, and
nothing of one ever shown."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from weft.engine.stream import pieces, until
from weft.text.settings import TokenizerConfig
from weft.text.tokenizer import Tokenizer

PIECES = st.lists(st.text("ab", min_size=1, max_size=4), max_size=8)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3)


@given(PIECES, STOPS)
def test_the_text_ends_before_the_first_stop_however_it_is_cut(
    pieces: list[str], stops: list[str]
) -> None:
    whole = "".join(pieces)
    cut = min((whole.find(stop) for stop in stops if stop in whole), default=len(whole))
    shown = ""
    for text in until(pieces, stops):
        shown += text
        assert whole[:cut].startswith(shown), "what was shown cannot be taken back"
    # a stop that is complete ends the text although an earlier, longer one was still possible
    ends = [whole.find(stop) + len(stop) for stop in stops if stop in whole]
    assert shown == whole[:cut] or (ends and min(ends) <= len(whole))


def test_what_cannot_be_a_stop_is_shown_at_once() -> None:
    texts = until(iter(["a", "b", "\n", "x"]), ["\n\n"])
    assert [next(texts), next(texts)] == ["a", "b"]
    assert next(texts) == "\nx"


def test_pieces_are_those_of_the_target_side() -> None:
    """Of a tokenizer whose two sides cut differently, ids that were written are the target's."""
    settings = TokenizerConfig(kind="character", min_frequency=1)
    reader, writer = (Tokenizer.train([line], settings) for line in ("zyx wvu", "abc def"))
    both = Tokenizer(reader.backend, reader.specials, target=writer)
    ids = writer.encode("fed cab")
    assert reader.pieces(ids) != writer.pieces(ids)
    assert "".join(pieces(both, ids)) == both.decode(ids) == "fed cab"
