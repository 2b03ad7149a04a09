"""LiveStreams: how the streams of each worker fare, read from what relays know anyway. Nothing is done a chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from pointsman.core.ledger.events import StreamsRead
from pointsman.core.model.worker import WorkerId

_ONE_OF = 5
"""Streams that may flow while the others are quiet: those that came after the rest froze."""


class LiveStream(Protocol):
    """One stream on its way from a worker to a client."""

    @property
    def engine_events(self) -> int:
        """That came of this worker so far."""
        ...

    @property
    def silent_ms(self) -> float | None:
        """Since its last bytes came, whatever they were.

        None: it has not begun, is no stream, or its client holds it up.
        """
        ...


@dataclass(slots=True)
class _Worker:
    ages_ms: list[float] = field(default_factory=list)
    tokens: int = 0


class LiveStreams:
    """`running`: answers that are under way, with their workers; looked at about every second."""

    def __init__(self, running: Callable[[], Iterable[tuple[WorkerId, LiveStream]]]) -> None:
        self._running = running
        self._events: dict[int, tuple[LiveStream, int, float]] = {}
        """Streams by identity → events at the reading before, and since when there were no more.

        It keeps them, so that no other takes their identity.
        """
        self._busy: set[WorkerId] = set()

    def read(self, now_ms: float) -> list[StreamsRead]:
        """A reading of each worker that has streams, and a last one of each that has none any more."""
        before, self._events = self._events, {}
        workers: dict[WorkerId, _Worker] = {}
        for worker, stream in self._running():
            silent_ms = stream.silent_ms
            if silent_ms is None:
                # Whoever begins, or goes on after a pause, is counted from there on.
                workers.setdefault(worker, _Worker())
                continue
            events = stream.engine_events
            known = before.get(id(stream))
            since_ms = now_ms - silent_ms
            if known is not None and known[1] == events:
                since_ms = min(since_ms, known[2])  # comments that keep a connection open are no tokens
            self._events[id(stream)] = (stream, events, since_ms)
            found = workers.get(worker)
            if found is None:
                found = workers[worker] = _Worker()
            found.ages_ms.append(now_ms - since_ms)
            if known is not None:
                found.tokens += events - known[1]
        gone = self._busy - workers.keys()
        self._busy = set(workers)
        return [
            *(_reading(worker, found, now_ms) for worker, found in workers.items()),
            *(StreamsRead(worker, now_ms, 0, 0, now_ms, 0.0) for worker in gone),
        ]


def _reading(worker: WorkerId, found: _Worker, now_ms: float) -> StreamsRead:
    ages_ms = sorted(found.ages_ms)
    if not ages_ms:
        return StreamsRead(worker, now_ms, 0, 0, now_ms, 0.0)
    quiet_ms = ages_ms[len(ages_ms) // _ONE_OF]
    return StreamsRead(worker, now_ms, len(ages_ms), found.tokens, now_ms - ages_ms[0], quiet_ms)
