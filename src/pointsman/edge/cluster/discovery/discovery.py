"""Discovery: a place where engines are found, and how people see it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pointsman.edge.cluster.discovery.record import WorkerRecord
from pointsman.edge.cluster.members import WorkerSource

Offer = Callable[[Sequence[WorkerSource]], None]
"""Takes all engines that are there now; what is not among them any more has left."""
ReadRecord = Callable[[WorkerRecord], WorkerSource]
"""The source that a record stands for. Raises ConfigError for one that can't be used here."""


class DiscoveryState(enum.StrEnum):
    """What is known of a place."""

    LOOKING = "looking"
    """It was never read so far."""
    CONNECTED = "connected"
    """What it says is known, and changes will be heard of."""
    LOST = "lost"
    """It can't be read now: its engines stay as they were."""


@dataclass(frozen=True, slots=True)
class Ignored:
    """A record that is not used."""

    record: str
    reason: str


@dataclass(frozen=True, slots=True)
class DiscoveryStatus:
    """One place, for people and metrics."""

    origin: str
    """configuration, api, file, etcd."""
    where: str
    state: DiscoveryState
    reason: str
    since_ms: float
    engines: int
    kept: int = 0
    """Of these: no longer named there, and kept for a while."""
    ignored: tuple[Ignored, ...] = ()
    ignored_total: tuple[tuple[str, int], ...] = ()
    """How often records were ignored, by reason: no_address, malformed."""
    troubles_total: int = 0
    """How often it could not be read."""
    missed_total: int = 0
    """Listings that found what had been missed."""


class Discovery(Protocol):
    """A place that is watched. It tells its `Offer` what is there, each time that changes."""

    @property
    def status(self) -> DiscoveryStatus:
        """As it stands now."""
        ...

    async def run(self) -> None:
        """Watches until cancelled; trouble is shown in `status`, never raised."""
        ...
