"""EtcdView: what an etcd holds of engines, and what is kept although it is not there any more. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pointsman.edge.cluster.etcd.client import Changes, Listing


@dataclass(frozen=True, slots=True)
class Entry:
    """One key."""

    value: bytes
    mod_revision: int


class EtcdView:
    """Keys by listings and watches, whichever comes.

    A key that vanishes is kept for `grace_ms` unless `leaves` says of its last value that its engine meant to go: who
    lost a lease, or whose etcd was wiped, registers again in that time. While etcd can't be read nothing is forgotten,
    and the time begins again when it can.
    """

    def __init__(self, leaves: Callable[[bytes], bool], grace_ms: float) -> None:
        self._leaves = leaves
        self._grace_ms = grace_ms
        self._there: dict[bytes, Entry] = {}
        self._kept: dict[bytes, tuple[Entry, float]] = {}
        """With the time of their end; none while nobody knows whether they are there."""
        self._cluster_id = 0
        self.revision = 0
        """Up to which everything is known."""

    @property
    def values(self) -> dict[bytes, bytes]:
        """Value by key, of those that are there and those that are kept."""
        kept = {key: entry.value for key, (entry, _) in self._kept.items()}
        return kept | {key: entry.value for key, entry in self._there.items()}

    @property
    def kept(self) -> frozenset[bytes]:
        """Keys that are not there any more."""
        return frozenset(self._kept)

    @property
    def next_ms(self) -> float | None:
        """When `tick` has something to do."""
        return min((until for _, until in self._kept.values() if until < math.inf), default=None)

    def heard(self, values: Mapping[bytes, bytes]) -> bool:
        """Somebody else knows this of an etcd that was not read here so far; whether it is used."""
        if self._cluster_id or self._kept or not values:
            return False
        self._kept = {key: (Entry(value, 0), math.inf) for key, value in values.items()}
        return True

    def listed(self, listing: Listing, asked_revision: int, now_ms: float) -> bool:
        """All keys were read; whether that was news. `asked_revision`: `revision` when they were asked for.

        One of an earlier revision than that is of an etcd that was made anew. One that a watch has overtaken says
        nothing.
        """
        anew = listing.cluster_id != self._cluster_id or listing.revision < asked_revision
        if not anew and listing.revision < self.revision:
            return False
        there = {kv.key: Entry(kv.value, kv.mod_revision) for kv in listing.entries}
        news = there != self._there
        for key, entry in self._there.items():
            if key not in there:
                self._vanished(key, entry, now_ms)
        for key in there:
            self._kept.pop(key, None)
        for key, (entry, until) in self._kept.items():
            self._kept[key] = (entry, min(until, now_ms + self._grace_ms))
        self._there = there
        self._cluster_id, self.revision = listing.cluster_id, listing.revision
        return news

    def changed(self, changes: Changes, now_ms: float) -> None:
        """A watch told of changes; of those that a listing knew before nothing is news."""
        for event in changes.events:
            key = event.kv.key
            if event.kv.mod_revision <= self.revision:
                continue
            if event.type == "DELETE":
                entry = self._there.pop(key, None)
                if entry is not None:
                    self._vanished(key, entry, now_ms)
            else:
                self._there[key] = Entry(event.kv.value, event.kv.mod_revision)
                self._kept.pop(key, None)
        self.revision = max(self.revision, changes.revision)

    def returned(self, now_ms: float) -> None:
        """Etcd can be read again: who is kept gets the whole time to register again."""
        self._kept = {key: (entry, now_ms + self._grace_ms) for key, (entry, _) in self._kept.items()}

    def tick(self, now_ms: float) -> tuple[bytes, ...]:
        """Forgets what was kept for long enough; the keys of it. Not to be called while etcd can't be read."""
        over = tuple(key for key, (_, until) in self._kept.items() if until <= now_ms)
        for key in over:
            del self._kept[key]
        return over

    def _vanished(self, key: bytes, entry: Entry, now_ms: float) -> None:
        if not self._leaves(entry.value):
            self._kept[key] = (entry, now_ms + self._grace_ms)
