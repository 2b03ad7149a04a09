"""HealthWatch: tells the ledger how streams fare, sends canaries that are due, and logs what became of health."""

from __future__ import annotations

import random
from collections.abc import Callable

from pointsman.core.ledger.events import Event
from pointsman.core.ledger.ledger import Ledger
from pointsman.edge.cluster.canaries import Canaries, TargetOf
from pointsman.edge.serving.clock import Clock
from pointsman.edge.serving.health_log import HealthLog
from pointsman.edge.serving.live_streams import LiveStreams


class HealthWatch:
    """`before_tick` and `after_tick` are called about every second, before and after the ledger's tick.

    `canary_limit_s`: what a canary may take.
    """

    def __init__(
        self,
        ledger: Ledger,
        emit: Callable[[Event], None],
        streams: LiveStreams,
        target_of: TargetOf,
        clock: Clock,
        rng: random.Random,
        canary_limit_s: float,
    ) -> None:
        self._ledger = ledger
        self._emit = emit
        self._streams = streams
        self._clock = clock
        self._log = HealthLog()
        self._canaries = Canaries(ledger.canaries_due, target_of, emit, clock, rng, limit_s=canary_limit_s)

    def retime(self, canary_limit_s: float) -> None:
        """Another limit for canaries that are sent from now on."""
        self._canaries.limit_s = canary_limit_s

    def before_tick(self) -> None:
        """How streams fare."""
        for reading in self._streams.read(self._clock()):
            self._emit(reading)

    def after_tick(self) -> None:
        """Canaries, and the log."""
        self._canaries.look()
        self._log.write(self._ledger.take_health_changes())

    async def close(self) -> None:
        """Canaries under way are given up."""
        await self._canaries.close()
        self._log.write(self._ledger.take_health_changes())
