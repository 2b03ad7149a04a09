"""What `status` shows of drains."""

from __future__ import annotations

import msgspec

from pointsman.edge.serving.drains import Drains, Phase


class DrainReport(msgspec.Struct):
    """One engine that gets no new work."""

    engine: str
    reason: str
    phase: str
    """finishing, migrating, cut or drained."""
    since_s: float
    in_flight: int
    """Requests of this front end that are there."""
    next_in_s: float | None
    """Until they are asked to go on elsewhere, or until the rest is cut; None: nothing is there."""


def drain_reports(drains: Drains, now_ms: float) -> list[DrainReport]:
    """All drains."""
    reports = []
    for drain in drains.all():
        next_ms = drain.migrates_ms if drain.phase is Phase.FINISHING else drain.cuts_ms
        reports.append(
            DrainReport(
                engine=drain.engine,
                reason=drain.reason,
                phase=drain.phase,
                since_s=(now_ms - drain.began_ms) / 1000,
                in_flight=drains.in_flight(drain.engine),
                next_in_s=None if drain.phase is Phase.DRAINED else max(0.0, (next_ms - now_ms) / 1000),
            )
        )
    return reports
