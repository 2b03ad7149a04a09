"""Which exclusion follows from a worker's facts. The only place where that is said."""

from __future__ import annotations

from dataclasses import dataclass

from pointsman.core.ledger.health.facts import Cause, Known
from pointsman.core.model.view import Exclusion

_TRAFFIC = frozenset({Cause.FAILURES})


@dataclass(frozen=True, slots=True)
class Facts:
    """All that counts."""

    probed: bool
    """Somebody asked it at least once."""
    live: Known
    ready: Known
    left_out: Cause | None = None
    """What traffic or canaries say; None: nothing against it."""
    paused: bool = False
    """It asked for a pause."""
    kept: bool = False
    """It is used all the same, since too many others are left out."""
    tried: bool = False
    """One request is let through to it."""


def exclusion_of(facts: Facts) -> Exclusion:
    """Why a worker gets no requests; NONE: it may. A worker whose ready is unknown is as good as its probes were."""
    if not facts.probed:
        return Exclusion.NOT_PROBED
    if facts.live is not Known.YES:
        return Exclusion.UNREACHABLE
    if facts.ready is not Known.YES:
        return Exclusion.NOT_READY
    if facts.left_out is not None and not (facts.kept or facts.tried):
        return Exclusion.FAILING if facts.left_out in _TRAFFIC else Exclusion.NOT_SERVING
    if facts.paused and not facts.kept:
        return Exclusion.PAUSED
    return Exclusion.NONE
