"""Health of workers in the status table: a short cell, and the lines that say why."""

from __future__ import annotations

from collections.abc import Iterator

from pointsman.core.ledger.health.facts import Known
from pointsman.core.ledger.health.standing import Position
from pointsman.edge.serving.health_status import FactStatus, HealthStatus
from pointsman.edge.serving.status import WorkerStatus

_SHORT = {Known.YES.value: "yes", Known.NO.value: "no", Known.UNKNOWN.value: "?"}
_REFUSED = "to a canary"


def health_cell(health: HealthStatus | None) -> str:
    """`well`, or live, ready and serving one by one: `yes no ?`, with a question mark for what is not known."""
    if health is None:
        return "–"
    short = [_short(fact) for fact in (health.live, health.ready, health.serving)]
    return "well" if short == ["yes"] * 3 else " ".join(short)


def health_lines(worker: WorkerStatus) -> Iterator[str]:
    """What speaks against a worker, beyond why it is excluded, and what is not known of it."""
    health = worker.health
    if health is None:
        return
    if health.kept:
        yield f"{worker.id}: used although it should be left out, too many others are: {health.reason}"
    elif health.standing == Position.SUSPECT:
        yield f"{worker.id}: in doubt: {health.reason}"
    elif health.standing == Position.OUT and health.again_in_s is not None:
        yield f"{worker.id}: tried again in {health.again_in_s:.0f} s"
    elif health.standing == Position.TRIAL:
        yield f"{worker.id}: left out until a canary or a request shows that it is well"
    if health.canary.off is not None and _REFUSED in health.canary.off:
        yield f"{worker.id}: gets no canaries: {health.canary.off}"


def _short(fact: FactStatus) -> str:
    return _SHORT.get(fact.state, fact.state)
