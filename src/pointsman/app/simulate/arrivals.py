"""Arrivals: when each request of a trace comes.

Open loop: at its time; a request that waits for another one's answer comes `gap_ms` after that. Closed loop: so many
clients take the next request, with all that follow on its answer, when the last of theirs was answered. However a
request ends, those that wait for it come: a fleet that fails requests must not get less work for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from pointsman.core.model.errors import ConfigError
from pointsman.core.workload.trace import Trace

AFTER_REJECTION_MS = 1_000.0
"""A client of a closed loop waits so long after an error before it asks for the next thing."""

Arrival = tuple[float, int]
"""Time in ms, position in the trace."""


class Arrivals:
    """`clients` None: open loop. `recorded_times`: requests come when they did, whatever they wait for."""

    def __init__(self, trace: Trace, *, clients: int | None = None, recorded_times: bool = False) -> None:
        if clients is not None and clients < 1:
            raise ConfigError(f"clients must be at least 1, not {clients}")
        if clients is not None and recorded_times:
            raise ConfigError("a closed loop (clients) can't come at recorded times; choose one")
        self._requests = trace.requests
        self._clients = clients
        self._waits = not recorded_times
        self._followers: dict[int, list[int]] = {}
        self._root: list[int] = []
        self._left: dict[int, int] = {}
        """First request of what a client does → requests of it that have not ended."""
        for position, request in enumerate(trace.requests):
            after = request.after if self._waits else None
            root = position if after is None else self._root[after]
            self._root.append(root)
            self._left[root] = self._left.get(root, 0) + 1
            if after is not None:
                self._followers.setdefault(after, []).append(position)
        self._untaken = deque(self._left) if clients is not None else deque()

    @property
    def start_ms(self) -> float:
        """When the clock starts."""
        return self._requests[0].at_ms if self._requests and self._clients is None else 0.0

    def first(self) -> Iterator[Arrival]:
        """Those that wait for nobody."""
        if self._clients is None:
            return ((self._requests[root].at_ms, root) for root in self._left)
        taken = [self._untaken.popleft() for _ in range(min(self._clients, len(self._untaken)))]
        return ((0.0, root) for root in taken)

    def ended(self, position: int, now_ms: float, *, answered: bool) -> list[Arrival]:
        """What comes because a request ended."""
        requests = self._requests
        come = [(now_ms + requests[next_one].gap_ms, next_one) for next_one in self._followers.pop(position, ())]
        root = self._root[position]
        self._left[root] -= 1
        if not self._left[root] and self._untaken:
            come.append((now_ms if answered else now_ms + AFTER_REJECTION_MS, self._untaken.popleft()))
        return come
