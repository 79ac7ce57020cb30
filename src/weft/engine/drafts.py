"""Drafts: the tokens so far -> a guess at those that follow, to be checked in one pass.

Prompt lookup (Saxena 2023): where the last few tokens have stood before, what followed them then is
likely to follow now. Differs from the original, which searches the whole prompt anew at each step:
every run of 2 to 4 tokens is filed under itself when it gets a follower, so that a token costs the
same after 10 tokens and after 10,000. A guess that reaches the present goes on in what it has
guessed, as LZ77 copies.

Exact, not only in distribution as in speculative sampling (Leviathan 2023): at each position the
token is chosen as it would be without drafts, by (seed, position), and a draft counts only if it is
that token.
"""

from __future__ import annotations

from collections.abc import Sequence

SHORTEST, LONGEST = 2, 4
"""Lengths of the runs that are looked up, the longest first."""

MOST_DRAFTS = 8
REST = 32
"""Tokens without drafts after which one is tried again."""


def accept(drafts: Sequence[int], chosen: Sequence[int]) -> int:
    """How many drafts hold: those before the first that differs from the token that was chosen in
    its place. The token chosen behind them is right as well, so one more than this is gained."""
    pairs = zip(drafts, chosen, strict=False)
    return next((n for n, (draft, token) in enumerate(pairs) if draft != token), len(drafts))


class PromptLookup:
    """The tokens of one sequence, and where each short run of them was last followed by another."""

    def __init__(self, ids: Sequence[int] = ()) -> None:
        self.ids: list[int] = []
        self.follower: dict[tuple[int, ...], int] = {}
        """A run of tokens -> the place behind its latest occurrence that has one."""
        self.extend(ids)

    def extend(self, ids: Sequence[int]) -> None:
        for token in ids:
            place = len(self.ids)
            for length in range(SHORTEST, min(LONGEST, place) + 1):
                self.follower[tuple(self.ids[place - length :])] = place
            self.ids.append(token)

    def propose(self, count: int) -> list[int]:
        """Up to `count` tokens that may follow; none if no run has stood before."""
        for length in range(min(LONGEST, len(self.ids)), SHORTEST - 1, -1):
            place = self.follower.get(tuple(self.ids[-length:]))
            if place is not None:
                return self.copy(place, count)
        return []

    def copy(self, place: int, count: int) -> list[int]:
        """`count` tokens from a place on; behind the last one, the copy is read itself."""
        period = len(self.ids) - place
        drafts = self.ids[place : place + count]
        while len(drafts) < count:
            drafts.append(drafts[len(drafts) - period])
        return drafts


class Drafter:
    """Drafts for one sequence, as many as have been worth it.

    propose()                 the drafts to run along with the last token
    observe(drafts, chosen)   the tokens that were really chosen there -> those that hold
    """

    def __init__(self, ids: Sequence[int] = (), most: int = MOST_DRAFTS) -> None:
        self.lookup, self.most = PromptLookup(ids), most
        self.count, self.idle = min(2, most), 0

    def propose(self, room: int | None = None) -> list[int]:
        """At most `room` drafts, if it is given: how many tokens the request may still have."""
        count = self.count if room is None else min(self.count, room)
        return self.lookup.propose(count) if count > 0 else []

    def observe(self, drafts: Sequence[int], chosen: Sequence[int]) -> list[int]:
        """`chosen` holds a token for the place of each draft and one behind them. The result is the
        text of the sequence, the same as without drafts."""
        assert len(chosen) == len(drafts) + 1, f"{len(chosen)} chosen for {len(drafts)} drafts"
        accepted = accept(drafts, chosen)
        kept = list(chosen[: accepted + 1])
        self.lookup.extend(kept)
        self.adapt(len(drafts), accepted)
        return kept

    def adapt(self, proposed: int, accepted: int) -> None:
        """Twice as many after all were right, half as many after most were wrong, down to none;
        after a rest, one again."""
        if proposed == 0:
            self.idle += 1
            if self.count == 0 and self.idle >= REST:
                self.count = min(1, self.most)
            return
        self.idle = 0
        if accepted == proposed:
            self.count = min(self.most, max(self.count, 2 * proposed))
        elif 2 * accepted < proposed:
            self.count //= 2
