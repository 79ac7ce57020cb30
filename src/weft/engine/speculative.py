"""Speculative decoding by prompt lookup: the tokens so far -> drafts, verified in one forward pass.

Prompt lookup (Saxena 2023): where the last few tokens occurred before, the tokens that followed
them are likely to follow again. Differs from the original, which searches the whole prompt in each
step: every n-gram of 2 to 4 tokens is indexed when it gets a successor, so a step costs the same
after 10 tokens and after 10,000. A draft that reaches the end of the text continues with its own
tokens, as LZ77 copies.

The output is exactly that without drafts, not only its distribution as in speculative sampling
(Leviathan 2023): at each position the token is chosen as usual, by (seed, position), and a draft is
accepted only if it equals that token.
"""

from __future__ import annotations

from collections.abc import Sequence

MIN_NGRAM, MAX_NGRAM = 2, 4
"""Lengths of the n-grams that are looked up, longest first."""

MAX_DRAFTS = 8
RETRY_AFTER = 32
"""Steps without drafts after which one is tried again."""


def num_accepted(drafts: Sequence[int], chosen: Sequence[int]) -> int:
    """Number of drafts before the first that differs from the token chosen in its position. The
    token chosen after them is valid too, so a step gains one more than this."""
    pairs = zip(drafts, chosen, strict=False)
    return next((n for n, (draft, token) in enumerate(pairs) if draft != token), len(drafts))


class PromptLookup:
    """Index of the n-grams of one sequence."""

    def __init__(self, ids: Sequence[int] = ()) -> None:
        self.ids: list[int] = []
        self.successor: dict[tuple[int, ...], int] = {}
        """n-gram -> position after its latest occurrence that has a successor."""
        self.extend(ids)

    def extend(self, ids: Sequence[int]) -> None:
        for token in ids:
            position = len(self.ids)
            for length in range(MIN_NGRAM, min(MAX_NGRAM, position) + 1):
                self.successor[tuple(self.ids[position - length :])] = position
            self.ids.append(token)

    def propose(self, count: int) -> list[int]:
        """Up to `count` tokens that may follow; none if no n-gram occurred before."""
        for length in range(min(MAX_NGRAM, len(self.ids)), MIN_NGRAM - 1, -1):
            position = self.successor.get(tuple(self.ids[-length:]))
            if position is not None:
                return self.copy(position, count)
        return []

    def copy(self, position: int, count: int) -> list[int]:
        """`count` tokens from a position on; past the last token, the copy itself is read."""
        period = len(self.ids) - position
        drafts = self.ids[position : position + count]
        while len(drafts) < count:
            drafts.append(drafts[len(drafts) - period])
        return drafts


class Drafter:
    """Drafts for one sequence; their number adapts to how many were accepted.

    propose()                 drafts to run together with the last token
    observe(drafts, chosen)   tokens chosen in their positions -> the accepted ones and one more
    """

    def __init__(self, ids: Sequence[int] = (), max_drafts: int = MAX_DRAFTS) -> None:
        self.lookup, self.max_drafts = PromptLookup(ids), max_drafts
        self.count, self.num_idle = min(2, max_drafts), 0

    def propose(self, limit: int | None = None) -> list[int]:
        """At most `limit` drafts: how many tokens the request may still have."""
        count = self.count if limit is None else min(self.count, limit)
        return self.lookup.propose(count) if count > 0 else []

    def observe(self, drafts: Sequence[int], chosen: Sequence[int]) -> list[int]:
        """`chosen` has a token for the position of each draft and one after them. Returns the next
        tokens of the sequence, the same as without drafts."""
        assert len(chosen) == len(drafts) + 1, f"{len(chosen)} chosen for {len(drafts)} drafts"
        accepted = num_accepted(drafts, chosen)
        tokens = list(chosen[: accepted + 1])
        self.lookup.extend(tokens)
        self.adapt(len(drafts), accepted)
        return tokens

    def adapt(self, proposed: int, accepted: int) -> None:
        """Double the number of drafts after all were accepted, halve it after most were rejected,
        down to 0; try one again after RETRY_AFTER steps."""
        if proposed == 0:
            self.num_idle += 1
            if self.count == 0 and self.num_idle >= RETRY_AFTER:
                self.count = min(1, self.max_drafts)
            return
        self.num_idle = 0
        if accepted == proposed:
            self.count = min(self.max_drafts, max(self.count, 2 * proposed))
        elif 2 * accepted < proposed:
            self.count //= 2
