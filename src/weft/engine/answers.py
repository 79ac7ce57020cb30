"""Updates of requests -> what a caller gets: an `Answer` to a prompt, a `Translation` of a source.

Requests are followed in the order they were given, while the engine works on all of them: what
comes early for a later one waits in its inbox.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from weft.engine.beam import Hypothesis
from weft.engine.desk import Desk, refuse_error
from weft.engine.logprobs import TokenLogprob
from weft.engine.stops import Finish
from weft.engine.writing import Update, Writing

Progress = Callable[[int], None]
"""Called with the number of texts that were just finished."""

Decode = Callable[[Sequence[int]], str]
"""Ids -> the text of a whole translation."""


class Searcher(Protocol):
    """A desk, or a team of processes."""

    def search(self, writings: Sequence[Writing]) -> Iterator[tuple[int, list[Hypothesis]]]:
        """What each search has found, with its place in `writings`, as they end."""


@dataclass
class Answer:
    """One text that was written, complete once `finish` is there."""

    index: int = 0
    """Which of the n answers to its prompt."""
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    """Without the token that ended it."""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    """One for each token, and one more for an end token; none unless asked for."""
    finish: Finish | None = None
    num_prompt: int = 0
    """Tokens of the prompt."""

    def add(self, update: Update) -> None:
        """Take in what one step has brought."""
        self.text += update.text
        self.tokens += update.tokens
        self.logprobs += update.logprobs
        self.finish = update.finish

    def score(self, length_penalty: float) -> float:
        """As a beam is scored: log probability / length ** length_penalty, the end counted."""
        total = sum(one.logprob for one in self.logprobs)
        return total / max(1, len(self.logprobs)) ** length_penalty


@dataclass(frozen=True)
class Translation:
    """A translation and its score; None where there was nothing to translate."""

    text: str
    score: float | None


NOTHING = Translation("", None)


def answers(
    desk: Desk, writings: Sequence[Writing], progress: Progress | None = None
) -> Iterator[list[Answer]]:
    """The n answers to each request, in order, each as soon as those before it are complete. All
    requests are taken in, or refused, at the call."""
    return complete(desk, writings, desk.open_all(writings), progress)


def complete(
    desk: Desk, writings: Sequence[Writing], names: Sequence[str], progress: Progress | None
) -> Iterator[list[Answer]]:
    try:
        for writing, name in zip(writings, names, strict=True):
            found = [Answer(i, num_prompt=len(writing.prompt)) for i in range(writing.n)]
            while any(answer.finish is None for answer in found):
                update = refuse_error(desk.next(name))
                found[update.index].add(update)
            if progress is not None:
                progress(1)
            yield found
    finally:
        for name in names:
            desk.close(name)


def searched(
    searcher: Searcher,
    writings: Sequence[Writing],
    decode: Decode,
    progress: Progress | None,
) -> list[list[Translation]]:
    """The best translations of each request, best first."""
    results: list[list[Translation]] = [[] for _ in writings]
    for index, hypotheses in searcher.search(writings):
        results[index] = [Translation(decode(one.ids), one.score) for one in hypotheses]
        if progress is not None:
            progress(1)
    return results


def drawn(
    desk: Desk,
    writings: Sequence[Writing],
    decode: Decode,
    length_penalty: float,
    progress: Progress | None,
) -> list[list[Translation]]:
    """The samples of each request, the likeliest first; `logprobs` must be asked for."""
    results = []
    for found in answers(desk, writings, progress):
        ranked = sorted(found, key=lambda answer: -answer.score(length_penalty))
        results.append([Translation(decode(a.tokens), a.score(length_penalty)) for a in ranked])
    return results
