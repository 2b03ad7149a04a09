"""HealthSettings: how much has to speak against a worker, and for how long it is then left out."""

from __future__ import annotations

from dataclasses import dataclass

TRIES_PER_HEARTBEAT = 2.0
"""Heartbeats that a canary may take, unless told otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSettings:
    """Times in ms. Nothing here is needed for facts: they come from what happened."""

    heartbeat_ms: float = 5_000.0
    """Between two probes: what is wrong has to show itself within two of them."""
    canary: bool = True
    """Small generations are sent to workers in doubt, and to idle ones."""
    canary_idle_ms: float | None = 60_000.0
    """Without any proof for so long an idle worker gets one; None: only those in doubt do."""
    canary_limit_ms: float | None = None
    """What a canary may take; None: two heartbeats."""
    outliers: bool = True
    """Workers whose tokens stall or crawl beside those of their like are left out."""
    most_out: float = 0.5
    """Share of a model's usable workers that may be left out for what traffic says; one always stays."""
    failures: int = 5
    """In a row, until a worker is left out."""
    failure_share: float = 0.5
    """Of its requests of the last minute, once there are ten."""
    cool_off_ms: float = 10_000.0
    """How long it is left out at first; doubles each time up to `most_cool_off_ms`."""
    most_cool_off_ms: float = 300_000.0

    @property
    def canary_ms(self) -> float:
        """What a canary may take."""
        return TRIES_PER_HEARTBEAT * self.heartbeat_ms if self.canary_limit_ms is None else self.canary_limit_ms


QUIET_SETTINGS = HealthSettings(canary=False)
"""Of a ledger for which nobody sends canaries."""
