"""Limits of one party, and the refusal of what goes beyond."""

from __future__ import annotations

import enum
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Each of them None: no such limit."""

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    """Of prompts and answers together."""
    concurrency: int | None = None
    """Requests at the same time."""
    saved_s: float = 60.0
    """For how long of each limit what is not used may be used later, all at once."""

    @property
    def any(self) -> bool:
        """There is a limit at all."""
        return not (self.requests_per_minute is None and self.tokens_per_minute is None and self.concurrency is None)


NO_LIMITS = Limits()


class Kind(enum.StrEnum):
    """Which limit."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    CONCURRENCY = "concurrency"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request goes beyond a limit."""

    subject: str
    """Whose account it is."""
    kind: Kind
    limit: float
    wait_ms: float | None
    """After which it would pass, if nobody else takes anything; None: when a running request ends."""
