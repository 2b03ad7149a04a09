"""Standing: what is known of a place, with one line in the log for each change of it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from pointsman.edge.cluster.discovery.discovery import DiscoveryState, DiscoveryStatus, Ignored

_log = logging.getLogger("pointsman.cluster")

MOST_SHOWN = 20
"""Ignored records in a status."""
NO_ADDRESS, MALFORMED = "no_address", "malformed"


class Standing:
    """Of one place. `now_ms` is the clock of the front end."""

    def __init__(self, origin: str, where: str, now_ms: Callable[[], float]) -> None:
        self.origin = origin
        self.where = where
        self.missed = 0
        self._now_ms = now_ms
        self._state = DiscoveryState.LOOKING
        self._reason = "not read yet"
        self._since_ms = now_ms()
        self._troubles = 0
        self._ignored: dict[str, Ignored] = {}
        self._ignored_total: Counter[str] = Counter()

    @property
    def lost(self) -> bool:
        """It can't be read now."""
        return self._state is DiscoveryState.LOST

    def connect(self) -> None:
        """It was read."""
        if self._state is not DiscoveryState.CONNECTED:
            _log.info("%s %s: is read", self.origin, self.where)
            self._set(DiscoveryState.CONNECTED, "")

    def lose(self, reason: str) -> None:
        """It could not be read."""
        self._troubles += 1
        if self._state is not DiscoveryState.LOST:
            _log.warning("%s %s: can't be read, its engines stay as they are: %s", self.origin, self.where, reason)
            self._set(DiscoveryState.LOST, reason)
        elif reason != self._reason:
            _log.warning("%s %s: still can't be read: %s", self.origin, self.where, reason)
            self._reason = reason

    def ignore(self, record: str, kind: str, reason: str) -> None:
        """A record is not used; said once as long as the reason stays the same."""
        ignored = Ignored(record, reason)
        if self._ignored.get(record) != ignored:
            self._ignored[record] = ignored
            self._ignored_total[kind] += 1
            _log.warning("%s: an engine is ignored: %s", self.origin, reason)

    def use(self, records: set[str]) -> None:
        """Only these records were ignored this time; of others nothing is remembered."""
        for record in self._ignored.keys() - records:
            del self._ignored[record]

    def status(self, engines: int, kept: int = 0) -> DiscoveryStatus:
        """For people."""
        return DiscoveryStatus(
            self.origin,
            self.where,
            self._state,
            self._reason,
            self._since_ms,
            engines,
            kept,
            tuple(list(self._ignored.values())[:MOST_SHOWN]),
            tuple(sorted(self._ignored_total.items())),
            self._troubles,
            self.missed,
        )

    def _set(self, state: DiscoveryState, reason: str) -> None:
        self._state, self._reason, self._since_ms = state, reason, self._now_ms()
