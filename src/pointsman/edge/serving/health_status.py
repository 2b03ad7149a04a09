"""Health in the status document: the three facts of a worker, and where it stands."""

from __future__ import annotations

import msgspec

from pointsman.core.ledger.health.facts import FactSnapshot
from pointsman.core.ledger.health.snapshot import HealthSnapshot


class FactStatus(msgspec.Struct):
    """One fact."""

    state: str
    """yes, no or unknown, which is not no."""
    for_s: float
    """Seconds since it is so."""
    reason: str


class CanaryStatus(msgspec.Struct):
    """Small generations of our own."""

    off: str | None
    """Why it gets none."""
    last: str | None
    """How the last one went."""
    reason: str
    ago_s: float | None
    total_ms: float | None


class HealthStatus(msgspec.Struct):
    """A worker's health."""

    live: FactStatus
    """Its process answers."""
    ready: FactStatus
    """It accepts work, by its own word."""
    serving: FactStatus
    """Tokens flow out of it."""
    standing: str
    """trusted, suspect, out or trial."""
    cause: str | None
    reason: str
    again_in_s: float | None
    """Until it is tried again."""
    paused_for_s: float | None
    """It asked for a pause."""
    kept: bool
    """It is used although it should be left out: too many others are."""
    failures_in_row: int
    proof_ago_s: float | None
    """Since tokens last came from it."""
    canary: CanaryStatus


def health_status(health: HealthSnapshot, now_ms: float) -> HealthStatus:
    """As people are shown it."""
    canary = health.canary
    return HealthStatus(
        live=_fact(health.live, now_ms),
        ready=_fact(health.ready, now_ms),
        serving=_fact(health.serving, now_ms),
        standing=health.position.value,
        cause=None if health.cause is None else health.cause.value,
        reason=health.reason,
        again_in_s=_seconds(health.until_ms, now_ms),
        paused_for_s=_seconds(health.paused_until_ms, now_ms),
        kept=health.kept,
        failures_in_row=health.failures_in_row,
        proof_ago_s=_ago(health.proof_ms, now_ms),
        canary=CanaryStatus(canary.off, canary.last, canary.reason, _ago(canary.at_ms, now_ms), canary.total_ms),
    )


def _fact(fact: FactSnapshot, now_ms: float) -> FactStatus:
    return FactStatus(fact.state.value, round(max(0.0, now_ms - fact.since_ms) / 1000.0, 1), fact.reason)


def _seconds(until_ms: float | None, now_ms: float) -> float | None:
    return None if until_ms is None else round(max(0.0, until_ms - now_ms) / 1000.0, 1)


def _ago(at_ms: float | None, now_ms: float) -> float | None:
    return None if at_ms is None else round(max(0.0, now_ms - at_ms) / 1000.0, 1)
