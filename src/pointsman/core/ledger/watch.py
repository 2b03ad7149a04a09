"""Watch: what happened to one worker's requests, written down now and looked at with the next tick.

The request path only appends to a list. With the tick it is replayed into the observer that makes intervals of it. A
busy worker is watched for a part of the time only: when more happened than the tick may look at, the rest is dropped
and the observer begins anew with what is in flight by then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from pointsman.core.model.request import Request
from pointsman.core.timing.interval import Interval
from pointsman.core.timing.observer import ObservedLoad, WorkerObserver

MOST_KEPT = 4_096
"""Events kept until somebody looks, at first; then as many as are looked at at once."""
_PREDICTIONS = 4
"""Times to the first token that are predicted in a replay, about."""

Predict = Callable[[ObservedLoad, int, int], float | None]
"""(load, new tokens, cached tokens) → ms to the first token."""
Judge = Callable[[float, float], None]
"""(predicted ms, actual ms)."""
InFlight = tuple[Request, int, int, bool]
"""Request, prompt tokens that were thought cached, tokens generated, whether it has its first token."""

_STARTED, _FIRST, _TOKENS, _ENDED = range(4)


class Watch:
    """Of one incarnation of a worker. What requests call costs an append."""

    __slots__ = ("_awaited", "_clean_ms", "_events", "_most", "_observer", "_predicted", "dropped")

    def __init__(self) -> None:
        self._events: list[tuple[int, str, float, int, int, int]] = []
        self._most = MOST_KEPT
        self._observer = WorkerObserver()
        self._awaited: set[str] = set()
        """Requests of which nobody knows how much of their prompt was computed before the watch began anew."""
        self._clean_ms = -math.inf
        """Intervals that begin before are not whole."""
        self._predicted: dict[str, tuple[float, float]] = {}
        """Request → when it was sent, predicted ms to its first token."""
        self.dropped = 0
        """Events that were not looked at."""

    def started(self, request: Request, at_ms: float, cached_tokens: int) -> None:
        """A request was sent there."""
        sequences = request.sequences if request.streamed else -request.sequences
        self._add((_STARTED, request.id, at_ms, request.prompt_tokens, cached_tokens, sequences))

    def first_token(self, request_id: str, at_ms: float, *, computed: bool) -> None:
        """Its first token came; `computed`: the worker computed the prompt."""
        self._add((_FIRST, request_id, at_ms, computed, 0, 0))

    def tokens(self, request_id: str, at_ms: float, count: int) -> None:
        """More tokens came."""
        self._add((_TOKENS, request_id, at_ms, count, 0, 0))

    def ended(self, request_id: str, at_ms: float, output_tokens: int | None = None) -> None:
        """It ended, however."""
        self._add((_ENDED, request_id, at_ms, -1 if output_tokens is None else output_tokens, 0, 0))

    def _add(self, event: tuple[int, str, float, int, int, int]) -> None:
        if len(self._events) < self._most:
            self._events.append(event)
        else:
            self.dropped += 1

    @property
    def kept(self) -> int:
        """Events that wait to be looked at."""
        return len(self._events)

    def replay(
        self, limit: int, at_ms: float, in_flight: Callable[[], Iterable[InFlight]], predict: Predict, judge: Judge
    ) -> list[Interval]:
        """The intervals in the first `limit` events since the last replay; `in_flight`: what is there now."""
        events, self._most = self._events, limit
        if not events:
            return []
        self._events = []
        whole = len(events) <= limit and not self.dropped
        self.dropped = 0
        found = self._replay(events if whole else events[:limit], predict, judge)
        if not whole:
            self.begin_anew(at_ms, in_flight())
        return found

    def _replay(
        self, events: list[tuple[int, str, float, int, int, int]], predict: Predict, judge: Judge
    ) -> list[Interval]:
        observer, found = self._observer, []
        every = max(1, len(events) // (4 * _PREDICTIONS))
        seen = 0
        for kind, request_id, at_ms, first, second, third in events:
            interval: Interval | None = None
            if kind == _TOKENS:
                interval = observer.tokens(request_id, first, at_ms)
            elif kind == _STARTED:
                seen += 1
                if seen % every == 0 and third > 0 and not self._awaited:
                    predicted_ms = predict(observer.load(at_ms), first - second, second)
                    if predicted_ms is not None:
                        self._predicted[request_id] = (at_ms, predicted_ms)
                observer.started(
                    request_id, at_ms, first, cached_tokens=second, sequences=abs(third), streamed=third > 0
                )
            elif kind == _FIRST:
                interval = observer.first_token(request_id, at_ms, computed=bool(first))
                predicted = self._predicted.pop(request_id, None)
                if predicted is not None and first:
                    judge(predicted[1], at_ms - predicted[0])
                self._has_come(request_id, at_ms)
            else:
                interval = observer.ended(request_id, at_ms, output_tokens=None if first < 0 else first)
                self._predicted.pop(request_id, None)
                self._has_come(request_id, at_ms)
            if interval is not None and interval.end_ms - interval.elapsed_ms >= self._clean_ms:
                found.append(interval)
        return found

    def _has_come(self, request_id: str, at_ms: float) -> None:
        if request_id in self._awaited:
            self._awaited.discard(request_id)
            if not self._awaited:
                self._clean_ms = at_ms

    def begin_anew(self, at_ms: float, in_flight: Iterable[InFlight]) -> None:
        """Watch from now on, with these there."""
        observer = self._observer
        observer.forget()
        self._predicted.clear()
        self._awaited.clear()
        # Those that wait come last: they hold up the choice of whom to count the steps by.
        for request, cached_tokens, generated, has_first in sorted(in_flight, key=lambda one: not one[3]):
            observer.started(
                request.id,
                at_ms,
                request.prompt_tokens,
                cached_tokens=cached_tokens,
                sequences=request.sequences,
                streamed=request.streamed,
            )
            if not request.streamed:
                continue
            if has_first:
                observer.first_token(request.id, at_ms, computed=False)
                observer.tokens(request.id, generated, at_ms)
            else:
                self._awaited.add(request.id)
        self._clean_ms = math.inf if self._awaited else at_ms
