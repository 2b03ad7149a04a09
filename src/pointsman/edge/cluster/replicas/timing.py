"""BusTiming: how often replicas speak, and after how long one counts as gone."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BusTiming:
    """All in seconds."""

    batch_s: float = 0.01
    """At most so often something is sent: what happens in between goes in one message."""
    heartbeat_s: float = 0.5
    """A replica that has nothing to say says so."""
    lost_after_s: float = 2.5
    """Without a word for so long it is gone, and what it had is free."""

    @property
    def answer_every_s(self) -> float:
        """At most so often one replica is told everything."""
        return self.heartbeat_s / 2
