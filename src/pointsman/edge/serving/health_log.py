"""HealthLog: a line for each change of a worker's health, with its reason. Ranks that change alike share one."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable

from pointsman.core.ledger.health.changes import HealthChange
from pointsman.core.ledger.health.facts import Known
from pointsman.core.model.worker import WorkerId, engine_of

PAUSE_SAID_EVERY_MS = 60_000.0
MOST_ALIKE = 50
"""Engines of which the same kind of change has a line of its own, out of those that come together within a second."""

_log = logging.getLogger("pointsman.health")


class HealthLog:
    """Good news is information, the rest are warnings. That a worker is overloaded is said once a minute at most."""

    def __init__(self) -> None:
        self._say_pause_ms: dict[WorkerId, float] = {}

    def write(self, changes: Iterable[HealthChange]) -> None:
        """Those since the last time."""
        alike: dict[tuple[str, str, str, str], list[HealthChange]] = {}
        for change in changes:
            if change.what != "paused" or self._pause_is_news(change):
                key = (engine_of(change.worker), change.what, change.state, change.reason)
                alike.setdefault(key, []).append(change)
        said: Counter[tuple[str, str, str]] = Counter()
        for (engine, *_), same in alike.items():
            kind = same[0].what, same[0].state, same[0].cause.value
            said[kind] += 1
            if said[kind] <= MOST_ALIKE:
                self._say(engine, same)
        for (what, state, cause), count in said.items():
            if count > MOST_ALIKE:
                message = "the same (%s: %s, by %s) of %d engines more; `pointsman status` shows which"
                _log.warning(message, what, state, cause, count - MOST_ALIKE)

    def _pause_is_news(self, change: HealthChange) -> bool:
        if change.at_ms < self._say_pause_ms.get(change.worker, change.at_ms):
            return False
        self._say_pause_ms = {who: at_ms for who, at_ms in self._say_pause_ms.items() if at_ms > change.at_ms}
        self._say_pause_ms[change.worker] = change.at_ms + PAUSE_SAID_EVERY_MS
        return True

    def _say(self, engine: str, same: list[HealthChange]) -> None:
        change = same[0]
        who = change.worker if len(same) == 1 else f"{engine} ({len(same)} ranks)"
        level = logging.INFO if _is_good(change) else logging.WARNING
        _log.log(level, "%s %s: %s%s", who, _words(change), change.reason, _lasted(change))


def _is_good(change: HealthChange) -> bool:
    if change.what == "kept":
        return change.state == Known.NO
    return change.what in ("live", "ready", "serving") and change.state == Known.YES


def _words(change: HealthChange) -> str:
    if change.what == "kept":
        return "is used although it should be left out" if change.state == Known.YES else "is judged by itself again"
    if change.what == "paused":
        return "gets a pause (said once a minute)"
    if change.what == "canary":
        return "gets no canaries"
    return {
        Known.YES.value: f"is {change.what}",
        Known.NO.value: f"is not {change.what}",
        Known.UNKNOWN.value: f"may not be {change.what}",
    }[change.state]


def _lasted(change: HealthChange) -> str:
    return f" (after {change.lasted_ms / 1000:.1f} s)" if change.lasted_ms >= 1.0 else ""
