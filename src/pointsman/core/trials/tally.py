"""Tally: what came of the requests of one arm, in bounded memory; tallies of several front ends can be added."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field

from pointsman.core.trials.buckets import Buckets
from pointsman.core.trials.sketch import Sketch


class End(enum.StrEnum):
    """How a request ended."""

    FINISHED = "finished"
    FAILED = "failed"
    """The engine's or the front end's fault."""
    REFUSED = "refused"
    """The engine called it faulty."""
    CANCELLED = "cancelled"
    """The client left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of one request. Times in ms; None: it has no such thing."""

    end: End
    at_ms: float
    prompt_tokens: int
    cached_tokens: int | None = None
    """As the engine reported."""
    ttft_ms: float | None = None
    """Of a request that ended before its first token: how long it had waited. Left out, the worst would not count."""
    itl_ms: float | None = None
    """Mean time between its tokens."""
    pace_ms: float | None = None
    """Of its whole time, a token."""


@dataclass(slots=True)
class Series:
    """One quantity of an arm."""

    log_sum: float = 0.0
    sketch: Sketch = field(default_factory=Sketch)
    rest: Buckets = field(default_factory=Buckets)
    """Of the logarithms, what is left when the baseline is taken away."""

    def add(self, value_ms: float, bucket: int, rest: float | None) -> None:
        """One value."""
        self.log_sum += math.log(value_ms)
        self.sketch.add(value_ms)
        if rest is not None:
            self.rest.add(bucket, rest)

    @property
    def typical(self) -> float | None:
        """Geometric mean."""
        return math.exp(self.log_sum / self.sketch.total) if self.sketch.total else None

    def merge(self, other: Series) -> None:
        """Add another one's values."""
        self.log_sum += other.log_sum
        self.sketch.merge(other.sketch)
        self.rest.merge(other.rest)


@dataclass(slots=True)
class Tally:
    """All of an arm."""

    ends: dict[End, int] = field(default_factory=dict)
    ttft: Series = field(default_factory=Series)
    itl: Series = field(default_factory=Series)
    pace: Series = field(default_factory=Series)
    cached: Buckets = field(default_factory=Buckets)
    """Cached tokens over prompt tokens, of requests whose engine reported them."""

    @property
    def requests(self) -> int:
        """Requests that ended."""
        return sum(self.ends.values())

    def merge(self, other: Tally) -> None:
        """Add another one's requests."""
        for end, count in other.ends.items():
            self.ends[end] = self.ends.get(end, 0) + count
        for mine, theirs in ((self.ttft, other.ttft), (self.itl, other.itl), (self.pace, other.pace)):
            mine.merge(theirs)
        self.cached.merge(other.cached)
