"""What canaries say of workers."""

from __future__ import annotations

import math
from collections.abc import Iterable

from pointsman.core.ledger.entries import WorkerEntry
from pointsman.core.ledger.events import CanaryRead, CanaryResult
from pointsman.core.ledger.health.canaries import is_idle
from pointsman.core.ledger.health.comparison import canary_times_slower, class_of
from pointsman.core.ledger.health.facts import Cause
from pointsman.core.ledger.health.standing import Position
from pointsman.core.ledger.health.verdicts import WARM_UP_MS, Judge
from pointsman.core.model.view import Column

_SLOW_CANARY_MS = 1_000.0


def of_canary(judge: Judge, entry: WorkerEntry, event: CanaryRead, entries: Iterable[WorkerEntry]) -> None:
    """What a canary says of its worker."""
    health, result, at_ms = entry.health, event.result, event.at_ms
    if result is CanaryResult.PASSED and _too_slow(entry, event, entries):
        result = CanaryResult.LATE
    if result is CanaryResult.PASSED:
        _passed(judge, entry, event)
    elif result is CanaryResult.REFUSED:
        health.no_canaries(event.reason, at_ms)
        if health.standing.position is Position.SUSPECT and health.standing.cause is Cause.CANARY:
            health.trust(Cause.CANARY, "it refuses canaries, which says nothing of it", at_ms)
    elif result is CanaryResult.BUSY:
        # It takes nothing now, and says so: only a real request can show whether it is well.
        health.canary_missing = health.standing.position is Position.TRIAL
    elif result is CanaryResult.LATE:
        _late_canary(judge, entry, event)
    elif result is CanaryResult.FAILED and _not_made_for_it(entry, event):
        return
    elif health.standing.position in (Position.SUSPECT, Position.TRIAL):
        health.leave_out(health.standing.cause or Cause.CANARY, f"a canary failed: {event.reason}", at_ms)
    else:
        health.doubt(Cause.CANARY, f"a canary failed: {event.reason}", at_ms)


def _passed(judge: Judge, entry: WorkerEntry, event: CanaryRead) -> None:
    health, at_ms = entry.health, event.at_ms
    health.canary_proved(at_ms, event.reason)
    standing = health.standing
    if judge.stands_still(entry, at_ms):
        return  # the streams that are there stand still all the same
    in_doubt = standing.position is Position.SUSPECT and standing.cause in (Cause.CANARY, Cause.CONNECTIONS)
    if in_doubt or standing.position is Position.TRIAL:
        health.trust(Cause.CANARY, f"a canary passed: {event.reason}", at_ms)


def _not_made_for_it(entry: WorkerEntry, event: CanaryRead) -> bool:
    """Of an engine at which none ever passed nobody knows whether it can: a server of embeddings may answer with 500.

    What it does with requests decides then. True: nothing else follows.
    """
    health, at_ms = entry.health, event.at_ms
    if health.canary_passed:
        return False
    if health.canary_failed_ms is None:
        health.canary_failed_ms = at_ms
    elif health.last_token_ms > health.canary_failed_ms:
        health.no_canaries(f"it answers requests, and fails canaries: {event.reason}", at_ms)
        if health.standing.position is Position.SUSPECT and health.standing.cause is Cause.CANARY:
            health.trust(Cause.CANARY, "it fails canaries only", at_ms)
        return True
    return False


def _late_canary(judge: Judge, entry: WorkerEntry, event: CanaryRead) -> None:
    health, at_ms = entry.health, event.at_ms
    position = health.standing.position
    cold = health.proof_ms == -math.inf and at_ms - health.ready.since_ms < WARM_UP_MS
    queued = bool(judge.table.cells[Column.QUEUED, entry.slot])
    waits = queued and health.standing.cause not in (Cause.STALLED, Cause.CONNECTIONS)
    if position is Position.TRUSTED:
        if cold or not is_idle(entry, judge.table) or health.last_token_ms > event.sent_ms:
            return  # it may compile, or have others to compute first
    elif position is Position.SUSPECT and (cold or waits):
        return
    health.leave_out(
        (health.standing.cause or Cause.CANARY), f"a canary was not answered in time: {event.reason}", at_ms
    )


def _too_slow(entry: WorkerEntry, event: CanaryRead, entries: Iterable[WorkerEntry]) -> bool:
    """A canary that passed, but at a crawl: only of interest where a crawl is the question."""
    standing, total_ms = entry.health.standing, event.total_ms
    if standing.cause not in (Cause.SLOW, Cause.FIRST_TOKENS) or total_ms is None or total_ms < _SLOW_CANARY_MS:
        return False
    name = class_of(entry)
    others = {
        other.id: other.health.canary_total_ms
        for other in entries
        if other.health.canary_total_ms is not None
        and other.health.canary_last is CanaryResult.PASSED
        and class_of(other) == name
    }
    return canary_times_slower(entry, total_ms, others) is not None
