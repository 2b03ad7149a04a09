"""Plans: what a policy may decide for one request."""

from __future__ import annotations

from dataclasses import dataclass

from pointsman.core.model.worker import WorkerId


@dataclass(frozen=True, slots=True)
class Pull:
    """Take cached blocks from another worker instead of computing them."""

    source: WorkerId
    tokens: int
    """Leading tokens of the prompt that the source holds, whole blocks."""


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One worker computes prefill and decode."""

    worker: WorkerId
    pull: Pull | None = None


@dataclass(frozen=True, slots=True)
class Disaggregate:
    """One worker computes the prefill, another one decodes."""

    prefill: WorkerId
    decode: WorkerId
    pull: Pull | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Nobody may take it now; decide again at `until_ms`."""

    until_ms: float


@dataclass(frozen=True, slots=True)
class Reject:
    """Nobody can take it; the client is told why and when to come back."""

    reason: str
    retry_after_ms: float | None = None


Plan = Aggregate | Disaggregate | Wait | Reject


def answering(plan: Plan) -> WorkerId | None:
    """The worker that answers the client: the one that decodes. None where nobody does."""
    if isinstance(plan, Aggregate):
        return plan.worker
    return plan.decode if isinstance(plan, Disaggregate) else None
