"""Health of one worker: three facts, where it stands, and what they rest on."""

from __future__ import annotations

import math

from pointsman.core.ledger.events import CanaryResult
from pointsman.core.ledger.health.changes import Changes, HealthChange
from pointsman.core.ledger.health.exclusion import Facts, exclusion_of
from pointsman.core.ledger.health.facts import Cause, Fact, FactName, FactSnapshot, Known
from pointsman.core.ledger.health.failures import Failures
from pointsman.core.ledger.health.settings import QUIET_SETTINGS, HealthSettings
from pointsman.core.ledger.health.signs import Signs
from pointsman.core.ledger.health.snapshot import CanarySnapshot, HealthSnapshot
from pointsman.core.ledger.health.standing import Position, Standing
from pointsman.core.model.view import Exclusion
from pointsman.core.model.worker import WorkerId

FAILED_PROBES_TO_LOSE = 2
"""One slow or lost probe says nothing: a busy engine answers late."""
_NEVER_MS = -math.inf
_NOBODY = WorkerId("")
_SIGNS_WINDOW = 0.4
"""Of a heartbeat, over which the speed of streams is taken."""
_MORE_THAN_CANARIES_TOKENS = 5
_FIRST_PAUSE_MS = 1_000.0
_MOST_PAUSE_MS = 60_000.0


class Health:
    """What is known of one incarnation. Judgements over several workers are the keeper's."""

    __slots__ = (
        "_changes",
        "_pause_ms",
        "canary_at_ms",
        "canary_failed_ms",
        "canary_last",
        "canary_missing",
        "canary_off",
        "canary_passed",
        "canary_read_ms",
        "canary_reason",
        "canary_sent_ms",
        "canary_total_ms",
        "failed_probes",
        "failures",
        "generated_ms",
        "generated_tokens",
        "kept",
        "last_token_ms",
        "live",
        "load_read_ms",
        "pause_lifted",
        "paused_until_ms",
        "probe_reason",
        "probed_ever",
        "proof_ms",
        "ready",
        "seen_tokens",
        "serving",
        "settings",
        "signs",
        "standing",
        "trial_request",
        "unseen_tokens",
        "worker",
    )

    def __init__(
        self,
        worker: WorkerId = _NOBODY,
        settings: HealthSettings = QUIET_SETTINGS,
        changes: Changes | None = None,
        at_ms: float = 0.0,
    ) -> None:
        self.worker = worker
        self.settings = settings
        self._changes = Changes() if changes is None else changes
        self.live, self.ready, self.serving = (Fact(since_ms=at_ms) for _ in range(3))
        self.serving.reason = "no token of it was seen yet"
        self.standing = Standing(since_ms=at_ms)
        self.failures = Failures()
        self.signs = Signs(_SIGNS_WINDOW * settings.heartbeat_ms)
        self.probed_ever = False
        self.failed_probes = 0
        self.probe_reason = "joined, not probed yet"
        self.last_token_ms = _NEVER_MS
        """Of requests, not of canaries."""
        self.proof_ms = _NEVER_MS
        """When a token, or a canary that passed, came last."""
        self.generated_tokens: int | None = None
        """By its own count."""
        self.generated_ms = _NEVER_MS
        """When that went up last by more than canaries account for."""
        self.seen_tokens = 0
        """Of streams, since it last told its own count."""
        self.unseen_tokens = 0
        """By how many more it generated between its last two counts than streams showed."""
        self.load_read_ms = _NEVER_MS
        """When it told its load last."""
        self.paused_until_ms = _NEVER_MS
        self._pause_ms = 0.0
        self.pause_lifted = False
        """It is used all the same: all others paused, too."""
        self.kept = False
        self.trial_request: str | None = None
        """The request that was let through to try it."""
        self.canary_sent_ms: float | None = None
        """Of the one under way."""
        self.canary_at_ms: float | None = None
        """When the last one was sent."""
        self.canary_read_ms = _NEVER_MS
        """When somebody said last how one went."""
        self.canary_off: str | None = None
        """Why it gets none."""
        self.canary_missing = False
        """One should have shown whether it is well, and nobody says how it went."""
        self.canary_last: CanaryResult | None = None
        self.canary_passed = False
        """One did, once."""
        self.canary_failed_ms: float | None = None
        """When one failed first, if none ever passed."""
        self.canary_reason = ""
        self.canary_total_ms: float | None = None

    # ---- what follows

    @property
    def exclusion(self) -> Exclusion:
        """Why it gets no requests; NONE: its health does not stand against it."""
        return exclusion_of(self.facts())

    @property
    def lost(self) -> bool:
        """It was asked, and nothing says that it is there."""
        return self.probed_ever and self.live.state is not Known.YES

    @property
    def usable_by_probes(self) -> bool:
        """It could be used if traffic said nothing against it."""
        return self.live.state is Known.YES and self.ready.state is Known.YES

    def facts(self) -> Facts:
        """What its exclusion follows from."""
        standing = self.standing
        return Facts(
            probed=self.probed_ever,
            live=self.live.state,
            ready=self.ready.state,
            left_out=standing.cause if standing.left_out else None,
            paused=self.paused and not self.pause_lifted,
            kept=self.kept,
            tried=self.door_open,
        )

    @property
    def door_open(self) -> bool:
        """One real request shows whether it is well: no canary can. It is not on its way yet."""
        no_canary = self.canary_off is not None or self.canary_missing or self.canary_failed_ms is not None
        return self.standing.position is Position.TRIAL and no_canary and self.trial_request is None

    @property
    def paused(self) -> bool:
        """It asked for a pause that is not over."""
        return self.paused_until_ms != _NEVER_MS

    @property
    def reason(self) -> str:
        """Why it stands as it does, in words."""
        exclusion = self.exclusion
        if exclusion in (Exclusion.FAILING, Exclusion.NOT_SERVING):
            return self.standing.reason
        if exclusion is Exclusion.PAUSED:
            return "it asked for a pause: it is overloaded"
        if self.standing.position is not Position.TRUSTED and self.usable_by_probes:
            doubt = "used all the same, too few others" if self.kept else self.standing.position.value
            return f"{doubt}: {self.standing.reason}"
        return self.probe_reason

    # ---- probes

    def probed(
        self,
        reachable: bool,
        ready: bool,
        reason: str,
        at_ms: float,
        *,
        refused: bool = False,
        computes: bool = False,
    ) -> None:
        """A probe came back, or did not; `refused`: nobody listens there; `computes`: a long prompt explains it."""
        self.probe_reason = reason
        was_known = self.probed_ever and self.live.state is Known.YES
        self.probed_ever = True
        if reachable:
            self.failed_probes = 0
            self._set(FactName.LIVE, Known.YES, Cause.PROBE, reason, at_ms)
            self._set(FactName.READY, Known.YES if ready else Known.NO, Cause.PROBE, reason, at_ms)
            return
        self.failed_probes += 1
        lately_ms = at_ms - 2.0 * self.settings.heartbeat_ms
        # Late is not refused: whoever tells its load, or generates, is there.
        lives = self.last_token_ms > lately_ms or (not refused and (computes or self.load_read_ms > lately_ms))
        if was_known and (self.failed_probes < FAILED_PROBES_TO_LOSE or lives):
            return
        self._lost(Known.NO if refused else Known.UNKNOWN, Cause.PROBE, reason, at_ms)

    def refused(self, reason: str, at_ms: float) -> None:
        """A request found nobody listening: no doubt about that one."""
        self.probe_reason = reason
        self.probed_ever = True
        self._lost(Known.NO, Cause.REFUSED, reason, at_ms)

    def _lost(self, live: Known, cause: Cause, reason: str, at_ms: float) -> None:
        self._set(FactName.LIVE, live, cause, reason, at_ms)
        self._set(FactName.READY, Known.UNKNOWN, cause, reason, at_ms)
        self.signs.forget()
        if not self.standing.left_out:
            self.standing.trust(at_ms)
            self._set(FactName.SERVING, Known.UNKNOWN, cause, reason, at_ms)

    # ---- traffic

    def token_seen(self, at_ms: float) -> bool:
        """A request got something from it; True if that changed a fact. Called often: it must cost nothing."""
        self.last_token_ms = self.proof_ms = at_ms
        if self.serving.state is Known.YES and self.live.state is Known.YES:
            return False
        return self._tokens_flow(at_ms, Cause.TOKENS, "tokens came")

    def _tokens_flow(self, at_ms: float, cause: Cause, reason: str) -> bool:
        before = self.live.state, self.serving.state
        if self.live.state is Known.UNKNOWN and self.probed_ever:
            # It answers after all. Nothing is known of a worker that was refused: those tokens were under way.
            self._set(FactName.LIVE, Known.YES, cause, reason, at_ms)
            self._set(FactName.READY, Known.YES, cause, reason, at_ms)
        if self.standing.position is Position.TRUSTED:
            self._set(FactName.SERVING, Known.YES, cause, reason, at_ms)
        return before != (self.live.state, self.serving.state)

    def pause(self, asked_ms: float | None, at_ms: float) -> None:
        """It said that it takes nothing now. Without its word the pause doubles each time."""
        longer = min(_MOST_PAUSE_MS, self.settings.heartbeat_ms, max(_FIRST_PAUSE_MS, 2.0 * self._pause_ms))
        self._pause_ms = longer
        begins = not self.paused
        until_ms = at_ms + (longer if asked_ms is None else min(asked_ms, _MOST_PAUSE_MS))
        self.paused_until_ms = max(self.paused_until_ms, until_ms)
        if begins:
            self._changed("paused", Known.YES.value, 0.0, Cause.OVERLOAD, "it answered that it is overloaded", at_ms)

    def pause_over(self, at_ms: float) -> bool:
        """True if a pause ended now."""
        if not self.paused or at_ms < self.paused_until_ms:
            return False
        self.paused_until_ms = _NEVER_MS
        self.pause_lifted = False
        return True

    def answered(self, at_ms: float) -> None:
        """A request ended well."""
        self.failures.answered(at_ms)
        if self._pause_ms and not self.paused:
            self._pause_ms = 0.0

    # ---- standing

    def doubt(self, cause: Cause, reason: str, at_ms: float) -> None:
        """Something speaks against it, not enough yet."""
        if self.standing.left_out:
            return
        self.standing.doubt(cause, reason, at_ms)
        self._set(FactName.SERVING, Known.UNKNOWN, cause, reason, at_ms)

    def leave_out(self, cause: Cause, reason: str, at_ms: float) -> None:
        """Enough speaks against it."""
        self.standing.out(cause, reason, at_ms, self.settings)
        self.failures.forget()
        self.trial_request = None
        self.canary_missing = False
        self.signs.crawls_since_ms = None
        left_out_s = self.standing.cool_off_ms / 1000.0
        self._set(FactName.SERVING, Known.NO, cause, f"{reason}; left out for {left_out_s:g} s", at_ms)

    def trust(self, cause: Cause, reason: str, at_ms: float) -> None:
        """Nothing speaks against it any more."""
        self.standing.trust(at_ms)
        self.failures.forget()
        self.trial_request = None
        state = Known.YES if self.proof_ms > _NEVER_MS else Known.UNKNOWN
        self._set(FactName.SERVING, state, cause, reason, at_ms)

    def set_kept(self, kept: bool, at_ms: float) -> None:
        """It is used although it should be left out, or not any more."""
        if kept is self.kept:
            return
        self.kept = kept
        state = Known.YES if kept else Known.NO
        reason = "too many others are left out already" if kept else "enough others can be used again, or it is well"
        self._changed("kept", state.value, 0.0, Cause.QUOTA, reason, at_ms)

    # ---- canaries

    def canary_proved(self, at_ms: float, reason: str) -> None:
        """A canary came back whole."""
        self.canary_passed, self.canary_failed_ms = True, None
        self.proof_ms = max(self.proof_ms, at_ms)
        self._tokens_flow(at_ms, Cause.CANARY, reason)

    def no_canaries(self, reason: str, at_ms: float) -> None:
        """It gets none from now on."""
        if self.canary_off is None:
            self.canary_off = reason
            self._changed("canary", Known.NO.value, 0.0, Cause.CANARY, reason, at_ms)

    # ---- its own counts

    def generated(self, tokens: int, at_ms: float) -> None:
        """It says that it generated so many tokens since it started."""
        before, self.generated_tokens = self.generated_tokens, tokens
        self.unseen_tokens = 0 if before is None else tokens - before - self.seen_tokens
        self.seen_tokens = 0
        if before is not None and tokens - before >= _MORE_THAN_CANARIES_TOKENS:
            self.generated_ms = at_ms

    # ---- the rest

    def _set(self, name: FactName, state: Known, cause: Cause, reason: str, at_ms: float) -> None:
        fact: Fact = getattr(self, name.value)
        fact.reason = reason
        if state is fact.state:
            return
        lasted_ms = max(0.0, at_ms - fact.since_ms)
        fact.state, fact.since_ms = state, at_ms
        self._changed(name.value, state.value, lasted_ms, cause, reason, at_ms)

    def _changed(self, what: str, state: str, lasted_ms: float, cause: Cause, reason: str, at_ms: float) -> None:
        self._changes.add(HealthChange(self.worker, at_ms, what, state, lasted_ms, cause, reason))

    def snapshot(self) -> HealthSnapshot:
        """To show."""
        standing = self.standing
        return HealthSnapshot(
            live=FactSnapshot.of(self.live),
            ready=FactSnapshot.of(self.ready),
            serving=FactSnapshot.of(self.serving),
            position=standing.position,
            cause=standing.cause,
            reason=standing.reason,
            until_ms=standing.until_ms if standing.position is Position.OUT else None,
            paused_until_ms=self.paused_until_ms if self.paused else None,
            kept=self.kept,
            failures_in_row=self.failures.streak,
            proof_ms=None if self.proof_ms == _NEVER_MS else self.proof_ms,
            canary=CanarySnapshot(
                self.canary_off,
                None if self.canary_last is None else self.canary_last.value,
                self.canary_reason,
                self.canary_at_ms,
                self.canary_total_ms,
            ),
        )
