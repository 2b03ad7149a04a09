"""Health of one worker: what probes and traffic say about it, and when that excludes it."""

from __future__ import annotations

from dataclasses import dataclass

from pointsman.core.model.view import Exclusion

FAILED_PROBES_TO_LOSE = 2
"""One slow or lost probe says nothing: a busy engine answers late."""
TOKENS_PROVE_LIFE_MS = 10_000.0
"""Tokens that came this recently outweigh a probe that was not answered."""


@dataclass(slots=True)
class Health:
    """State of one worker. `status` is NONE when it may be used."""

    status: Exclusion = Exclusion.NOT_PROBED
    reason: str = "joined, not probed yet"
    since_ms: float = 0.0
    last_token_ms: float = float("-inf")
    failed_probes: int = 0

    def probed(self, reachable: bool, ready: bool, reason: str, at_ms: float) -> None:
        """A probe came back, or did not."""
        if reachable:
            self.failed_probes = 0
            self._set(Exclusion.NONE if ready else Exclusion.NOT_READY, reason, at_ms)
            return
        self.failed_probes += 1
        tokens_flow = at_ms - self.last_token_ms < TOKENS_PROVE_LIFE_MS
        unsure = self.failed_probes < FAILED_PROBES_TO_LOSE or tokens_flow
        if self.status is Exclusion.NONE and unsure:
            return
        self._set(Exclusion.UNREACHABLE, reason, at_ms)

    def refused(self, reason: str, at_ms: float) -> None:
        """A request found nobody listening: no doubt about that one."""
        self._set(Exclusion.UNREACHABLE, reason, at_ms)

    def token_seen(self, at_ms: float) -> None:
        """The worker produced something."""
        self.last_token_ms = at_ms

    def _set(self, status: Exclusion, reason: str, at_ms: float) -> None:
        if status is not self.status:
            self.status = status
            self.since_ms = at_ms
        self.reason = reason
