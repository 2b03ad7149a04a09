"""Shadows: policies that decide every request too, on the same view and by the same chance, without acting."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable

from pointsman.core.model.decision import Decision
from pointsman.core.model.request import Request
from pointsman.core.model.view import FleetView
from pointsman.core.model.worker import WorkerId
from pointsman.core.policies.contract import decided
from pointsman.core.policies.policy import Policy, Timing
from pointsman.core.trials.shadow import ShadowTally

MOST_FAILURES = 5
"""In a row, before a shadow is switched off."""

_log = logging.getLogger("pointsman.serving")


class Shadow:
    """One of them."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.tally = ShadowTally()
        """Since the policy that acts was last switched."""
        self._before = ShadowTally()
        self.off: str | None = None
        """Why it decides no longer."""
        self._in_a_row = 0

    @property
    def total(self) -> ShadowTally:
        """Since it was switched on."""
        total = ShadowTally()
        for tally in (self._before, self.tally):
            total.merge(tally)
        return total

    def begin_anew(self) -> None:
        """Another policy acts: what agreed with the one before says nothing of that."""
        self._before, self.tally = self.total, ShadowTally()

    def decide(
        self,
        request: Request,
        view: FleetView,
        timing: Timing,
        now_ms: float,
        chance: Callable[[], random.Random],
        acting: Decision,
    ) -> WorkerId | None:
        """Decide and compare with the decision that acts; what it chose. A fault is counted, not raised."""
        started = time.perf_counter()
        try:
            made = decided(self.policy, request, view, timing, now_ms, chance())
            self.tally.add(acting, made, 1000 * (time.perf_counter() - started))
        except Exception as error:
            self.tally.fail(1000 * (time.perf_counter() - started))
            self._failed(error)
            return None
        self._in_a_row = 0
        return made.worker

    def _failed(self, error: Exception) -> None:
        self._in_a_row += 1
        if self._in_a_row >= MOST_FAILURES:
            self.off = f"it failed {self._in_a_row} times in a row, the last time with {error!r}"
            _log.error("shadow policy %s is switched off: %s", self.policy.name, self.off, exc_info=error)


class Shadows:
    """All of a front end."""

    def __init__(self, policies: Iterable[Policy] = ()) -> None:
        self.all = [Shadow(policy) for policy in policies]
        self.active = list(self.all)

    def begin_anew(self) -> None:
        """Another policy acts."""
        for shadow in self.all:
            shadow.begin_anew()

    def decide(
        self,
        request: Request,
        view: FleetView,
        timing: Timing,
        now_ms: float,
        chance: Callable[[], random.Random],
        acting: Decision,
    ) -> dict[str, WorkerId | None]:
        """What each of them would have chosen, by policy."""
        chosen = {
            shadow.policy.name: shadow.decide(request, view, timing, now_ms, chance, acting) for shadow in self.active
        }
        if any(shadow.off for shadow in self.active):
            self.active = [shadow for shadow in self.active if shadow.off is None]
        return chosen
