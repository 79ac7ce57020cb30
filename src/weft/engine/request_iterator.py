"""Iterators over the outputs of requests that give everything back when they are not needed.

    exhausted, or an exception in it    its requests are aborted at once
    close(), or the end of a `with`     the same
    dropped, never iterated             their ids are queued, and the next engine step aborts them

A generator would not do: one that was never started runs no `finally`, and one that is dropped runs
it in whatever thread and at whatever line the garbage collector happens to be called.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Protocol, TypeVar

from weft.engine.scheduling.sequence import RequestTimes

T = TypeVar("T")
U = TypeVar("U")


class RequestOwner(Protocol):
    """Where the requests of an iterator were submitted: an EngineClient."""

    def abort(self, request_id: str) -> None:
        """Drop a request, its outputs and its pages. Does nothing if it is unknown."""

    def abort_later(self, ids: Sequence[str]) -> None:
        """The same with the next step; may be called in any thread and at any time."""


class RequestIterator(Iterator[T]):
    """Results of some requests, which are aborted when it is closed."""

    def __init__(
        self, owner: RequestOwner, ids: Iterable[str] = (), results: Iterator[T] | None = None
    ) -> None:
        self.owner = owner
        self.ids = list(ids)
        """Ids of its requests; empty once they were aborted or released."""
        self.times: dict[str, RequestTimes] = {}
        """Times and cached tokens by request, from before its first output."""
        self.results: Iterator[T] = iter(()) if results is None else results

    def __repr__(self) -> str:
        return f"RequestIterator({', '.join(self.ids) or 'no requests'})"

    def __iter__(self) -> RequestIterator[T]:
        return self

    def __next__(self) -> T:
        try:
            return next(self.results)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Abort the requests; no results follow."""
        self.results = iter(())
        while self.ids:
            self.owner.abort(self.ids[-1])
            self.ids.pop()

    def release(self) -> list[str]:
        """The ids, which from now on belong to the caller."""
        # one expression: no exception can come between the two
        return list(map(self.ids.pop, [0] * len(self.ids)))

    def then(self, results: Iterator[U]) -> RequestIterator[U]:
        """An iterator over other results of the same requests, which belong to it from now on."""
        other = RequestIterator(self.owner, self.ids, results)
        other.times = self.times
        self.ids = []
        return other

    def __enter__(self) -> RequestIterator[T]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "ids", ()):
            self.owner.abort_later(self.ids)
