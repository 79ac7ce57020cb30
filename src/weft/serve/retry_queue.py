"""`RetryQueue`: requests that were refused with 429 and are expected to return, in order.

    ticket = queue.find(fingerprint, now)       the ticket of a returning request, or None
    queue.ahead_of(ticket)                      sequences and tokens of earlier tickets; None: all
    queue.promise(ticket, wait, now)            record that it was told to return after `wait` s

Without it, a free place would go to the first request that arrives, which under overload is nearly
always a new one, so that Retry-After would be wrong for clients that follow it. A returning request
is recognized by a fingerprint of its content. Equal requests of several clients share one ticket.
A ticket expires if no client returns soon after its time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from weft.engine.request import GenerationRequest

GRACE_SECONDS, GRACE_SHARE = 5.0, 0.25
"""A client may be late by this many seconds, or by this fraction of its wait, as everything takes
longer under overload."""
EARLY_SECONDS = 0.05
"""A client may be early by this many seconds, as timers are rounded."""
MAX_TICKETS = 10_000


@dataclass(eq=False)
class Ticket:
    """The place of a refused request."""

    fingerprint: int
    num_sequences: int
    num_tokens: int
    due_at: float = 0.0
    expires_at: float = 0.0

    def is_due(self, now: float) -> bool:
        """Whether its client has waited as long as it was told to."""
        return now >= self.due_at - EARLY_SECONDS


class RetryQueue:
    """The tickets of one model. Not thread-safe; times are passed in."""

    def __init__(self) -> None:
        self.tickets: OrderedDict[int, Ticket] = OrderedDict()
        """By fingerprint, in the order of their first refusal."""
        self.num_sequences = self.num_tokens = 0
        """Sums over all tickets."""

    def __len__(self) -> int:
        return len(self.tickets)

    def find(self, fingerprint: int, now: float) -> Ticket | None:
        """The ticket of an equal request. Removes the first ones if they have expired."""
        while self.tickets:
            first = next(iter(self.tickets.values()))
            if first.expires_at >= now:
                break
            self.remove(first)
        return self.tickets.get(fingerprint)

    def issue(self, fingerprint: int, num_sequences: int, num_tokens: int) -> Ticket | None:
        """A ticket after all others; None if there are too many."""
        if len(self.tickets) >= MAX_TICKETS:
            return None
        ticket = Ticket(fingerprint, num_sequences, num_tokens)
        self.tickets[fingerprint] = ticket
        self.num_sequences += num_sequences
        self.num_tokens += num_tokens
        return ticket

    def promise(self, ticket: Ticket, wait: float, now: float) -> None:
        """Record that the client of a ticket was told to wait `wait` seconds."""
        ticket.due_at = now + wait
        ticket.expires_at = ticket.due_at + max(GRACE_SECONDS, GRACE_SHARE * wait)

    def remove(self, ticket: Ticket) -> None:
        """Remove a ticket: its client was admitted, or did not return."""
        del self.tickets[ticket.fingerprint]
        self.num_sequences -= ticket.num_sequences
        self.num_tokens -= ticket.num_tokens

    def ahead_of(self, ticket: Ticket | None) -> tuple[int, int]:
        """Sequences and tokens of the tickets before this one; None: of all tickets."""
        if ticket is None:
            return self.num_sequences, self.num_tokens
        num_sequences = num_tokens = 0
        for other in self.tickets.values():  # it is one of the first if clients are punctual
            if other is ticket:
                break
            num_sequences += other.num_sequences
            num_tokens += other.num_tokens
        return num_sequences, num_tokens


def fingerprint_of(key: str, requests: Sequence[GenerationRequest]) -> int:
    """A number that is equal for repeated requests. Ignores seeds, which the server draws."""
    return hash((key, *((one.prompt, one.source, one.max_tokens, one.n) for one in requests)))
