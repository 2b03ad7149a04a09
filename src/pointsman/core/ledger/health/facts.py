"""Facts: live, ready and serving are three things, and each is known to be so, known not to be so, or not known."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Known(enum.StrEnum):
    """What is known of a fact. Unknown is not no."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


class FactName(enum.StrEnum):
    """What there is to know of a worker."""

    LIVE = "live"
    """Its process answers."""
    READY = "ready"
    """It accepts work, by its own word."""
    SERVING = "serving"
    """Tokens flow out of it."""


class Cause(enum.StrEnum):
    """What a change of health comes from, as metrics name it."""

    PROBE = "probe"
    REFUSED = "refused"
    """A request found nobody listening."""
    TOKENS = "tokens"
    CANARY = "canary"
    FAILURES = "failures"
    STALLED = "stalled"
    SLOW = "slow"
    FIRST_TOKENS = "first_tokens"
    """They come late."""
    CONNECTIONS = "connections"
    """They take too long."""
    OVERLOAD = "overload"
    PROCESS = "process"
    """Another process, or none, is where it was."""
    QUOTA = "quota"
    """Too many others are left out already, or no longer."""
    TRIAL = "trial"
    """One request was let through to it."""


@dataclass(slots=True)
class Fact:
    """One fact of one worker: since when, and why, in words."""

    state: Known = Known.UNKNOWN
    since_ms: float = 0.0
    reason: str = "joined, not probed yet"


@dataclass(frozen=True, slots=True)
class FactSnapshot:
    """A fact to show."""

    state: Known
    since_ms: float
    reason: str

    @classmethod
    def of(cls, fact: Fact) -> FactSnapshot:
        """As it stands."""
        return cls(fact.state, fact.since_ms, fact.reason)
