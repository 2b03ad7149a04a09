"""Signs: what the streams and first tokens of one worker looked like over the last heartbeats."""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass

from pointsman.core.ledger.events import StreamsRead

READINGS_BELIEVED_MS = 3_000.0
"""How streams fare is unknown when nobody looked for so long."""
_MOST_READINGS = 600
FIRST_TOKENS_KEPT = 8
LATE_MS = 2_000.0
"""Sooner than that no first token is late."""


@dataclass(frozen=True, slots=True)
class Flow:
    """Streams over a while."""

    streams: float
    """In the mean."""
    tokens: int
    itl_ms: float
    """Time between two tokens of one stream; infinite where none came."""
    prefilled_tokens: int = 0
    """Of prompts that were computed meanwhile, between the tokens."""

    @property
    def prefilled_a_token(self) -> float:
        """Prompt tokens computed for one token of a stream."""
        return self.prefilled_tokens * self.streams / max(1, self.tokens)


class Signs:
    """Of one incarnation of a worker."""

    __slots__ = (
        "_busy_ms",
        "_covered_ms",
        "_first_tokens",
        "_prefilled",
        "_prefilled_tokens",
        "_readings",
        "_stream_ms",
        "_tokens",
        "crawls_since_ms",
        "late_count",
        "late_ms",
        "tokens_late",
        "window_ms",
    )

    def __init__(self, window_ms: float) -> None:
        self.window_ms = window_ms
        self._readings: deque[tuple[float, float, StreamsRead, int]] = deque(maxlen=_MOST_READINGS)
        """(when, ms since the reading before, reading, prompt tokens computed since the reading before)."""
        self._prefilled_tokens = 0
        """Since the last reading."""
        self._covered_ms = self._stream_ms = self._busy_ms = 0.0
        self._tokens = self._prefilled = 0
        """Sums over the readings."""
        self._first_tokens: deque[tuple[float, float, float]] = deque(maxlen=FIRST_TOKENS_KEPT)
        """(when, ms to the first token, log of that over what was ahead of it)."""
        self.crawls_since_ms: float | None = None
        self.late_count = 0
        """First tokens seen so far."""
        self.late_ms = -math.inf
        """When one came last that took long enough to be late."""
        self.tokens_late = 0
        """`late_count` when first tokens were found late; 0: they are not."""

    def read(self, reading: StreamsRead) -> None:
        """Somebody looked at its streams."""
        before = self._readings[-1][0] if self._readings else reading.at_ms
        elapsed_ms = reading.at_ms - before
        if elapsed_ms > READINGS_BELIEVED_MS:
            self._forget_readings()  # nobody knows what was between
            elapsed_ms = 0.0
        kept = (reading.at_ms, elapsed_ms, reading, self._prefilled_tokens)
        self._prefilled_tokens = 0
        while self._readings and self._readings[0][0] <= reading.at_ms - self.window_ms:
            self._sum(*self._readings.popleft(), by=-1)
        if not self._readings:
            self._forget_readings()  # so that no error of a sum is kept for ever
        elif len(self._readings) == _MOST_READINGS:
            self._sum(*self._readings.popleft(), by=-1)
        self._readings.append(kept)
        self._sum(*kept, by=1)

    def _sum(self, _: float, elapsed_ms: float, reading: StreamsRead, prefilled: int, *, by: int) -> None:
        self._covered_ms += by * elapsed_ms
        self._stream_ms += by * elapsed_ms * reading.streams
        self._busy_ms += by * elapsed_ms if reading.streams else 0.0
        self._tokens += by * reading.tokens if elapsed_ms else 0
        self._prefilled += by * prefilled

    def _forget_readings(self) -> None:
        self._readings.clear()
        self._covered_ms = self._stream_ms = self._busy_ms = 0.0
        self._tokens = self._prefilled = 0

    def latest(self, at_ms: float) -> StreamsRead | None:
        """The last reading, if it is not too old."""
        if not self._readings or at_ms - self._readings[-1][0] > READINGS_BELIEVED_MS:
            return None
        return self._readings[-1][2]

    def flow(self, at_ms: float) -> Flow | None:
        """Of the window; None before it is full, or where there were no streams for most of it."""
        if self.latest(at_ms) is None:
            return None
        covered_ms, stream_ms, tokens = self._covered_ms, self._stream_ms, self._tokens
        if covered_ms < 0.5 * self.window_ms or self._busy_ms < 0.8 * covered_ms:
            return None
        return Flow(stream_ms / covered_ms, tokens, stream_ms / tokens if tokens else math.inf, self._prefilled)

    def may_crawl(self, itl_ms: float) -> bool:
        """Cheap: False if its streams surely had less than so much between their tokens, and did not crawl before."""
        return self._stream_ms >= itl_ms * self._tokens > 0 or self.crawls_since_ms is not None

    def prefilled(self, tokens: int) -> None:
        """So many tokens of a prompt were computed."""
        self._prefilled_tokens += tokens

    def first_token(self, at_ms: float, waited_ms: float, ahead_ms: float) -> None:
        """A first token came; `ahead_ms`: how long the prompts that went first, and its own, should have taken."""
        self.late_count += 1
        if waited_ms >= LATE_MS:
            self.late_ms = at_ms
        self._first_tokens.append((at_ms, waited_ms, math.log(max(1.0, waited_ms) / max(1.0, ahead_ms))))

    def waited_ms(self, since_ms: float, enough: int) -> float | None:
        """Median time to the last first tokens since then; None: they were too few."""
        recent = [waited for at, waited, _ in self._first_tokens if at >= since_ms]
        return statistics.median(recent) if len(recent) >= enough else None

    def lateness(self, since_ms: float) -> float:
        """Median of the logarithms of what they took over what was expected. There has to be one."""
        return statistics.median(score for at, _, score in self._first_tokens if at >= since_ms)

    def forget(self) -> None:
        """Begin anew."""
        self._forget_readings()
        self._first_tokens.clear()
        self.late_ms = -math.inf
        self.crawls_since_ms = None
        self.tokens_late = 0
