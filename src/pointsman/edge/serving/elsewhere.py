"""Elsewhere: whether a request that a worker failed goes to another one, and what its client gets if it does not."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from pointsman.core.ledger.events import AttemptFailed
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.decision import Decision
from pointsman.core.model.errors import PolicyError
from pointsman.core.model.migration import Mechanism
from pointsman.core.model.request import Request
from pointsman.core.model.transfer import TransferMode
from pointsman.core.model.view import FleetView
from pointsman.core.model.worker import WorkerId
from pointsman.core.policies.pairs import some_pair
from pointsman.edge.serving.answers import reasons
from pointsman.edge.serving.attempt import Ending
from pointsman.edge.serving.breaks import CutShortError, DivergedError, EngineTimeoutError, InterruptedHereError
from pointsman.edge.serving.clock import Clock
from pointsman.edge.serving.endings import Endings
from pointsman.edge.serving.engine_links import EngineLinks
from pointsman.edge.serving.exchange import Exchange
from pointsman.edge.serving.failed_attempt import NOT_REACHED, FailedAttempt
from pointsman.edge.serving.failover import FailoverSettings
from pointsman.edge.serving.legs.plans import in_halves
from pointsman.edge.serving.retries import SURVIVED, NoRetry
from pointsman.edge.telemetry.traffic import Traffic

MOVED = "drain"
"""Reason of retries of requests whose worker drains."""
LOOK_EVERY_S = 0.1
"""For a worker that can go on with a stream."""
AT_ONCE = 100
"""Streams that look so often while they wait; more of them look less often, since each look makes a view."""
MOST_APART_S = 0.8
"""Less than a front end that stops gives its clients to hear of it."""
NO_PAIR = (
    "some of them serve halves of requests only, and no two can take it together (see kv_pairs_refused in /v1/status, "
    "and routing.kv_transfer)"
)
"""Why a request is not split where nothing is wrong with it."""
BACK_AFTER_S = 0.5
"""A worker that failed a stream may go on with it when it can be used again and nobody else could for so long."""

_log = logging.getLogger("pointsman.serving")


class Elsewhere:
    """Of the requests of one front end."""

    def __init__(
        self,
        ledger: Ledger,
        links: EngineLinks,
        traffic: Traffic,
        endings: Endings,
        settings: FailoverSettings,
        clock: Clock,
    ) -> None:
        self.settings = settings
        """May be exchanged for others while requests run."""
        self._ledger = ledger
        self._links = links
        self._traffic = traffic
        self._endings = endings
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._waiting = 0

    def goes(self, exchange: Exchange, failed: FailedAttempt, tried: set[WorkerId]) -> bool:
        """It goes to another worker, and the ledger knows; else it ended, and everybody knows how."""
        if exchange.responder.started:
            return self._goes_on(exchange, failed)
        if isinstance(failed.error, InterruptedHereError):
            return self._taken_away(exchange, failed, failed.error, tried)
        refusal = exchange.tries.refusal(failed.fault, budget_left=self._ledger.may_retry(self._clock()))
        if refusal is not None or failed.fault is None:
            self._give_up(exchange, failed, refusal or NoRetry.NOT_THE_ENGINE)
            return False
        if failed.of_other or failed.fault not in NOT_REACHED:
            view = self._ledger.view(exchange.request, tried)
            if not (some_pair(view) if failed.of_other else view.eligible.any()):
                self._give_up(exchange, failed, NoRetry.NOBODY, reasons(view))
                return False
        exchange.tries.used(failed.fault)
        self._left(exchange, failed)
        self._traffic.retries[failed.fault] += 1
        _log.warning("%s: %s; trying another worker", failed.worker, failed.reason)
        return True

    def nobody(self, exchange: Exchange, decision: Decision, failed: FailedAttempt | None) -> None:
        """No worker may take it, or none but those that failed it."""
        if failed is not None and exchange.responder.started:
            why = f"no worker could go on with it ({reasons(decision.view)})"
            self._break(exchange, failed, "no_worker", why, told=True)
        elif failed is None or (failed.fault in NOT_REACHED and not failed.of_other):
            if not exchange.whole and not self._links.halves.isdisjoint(decision.view.workers):
                exchange.whole = NO_PAIR
            self._endings.rejected(exchange, decision)
        else:
            self._give_up(exchange, failed, NoRetry.NOBODY, reasons(decision.view), told=True)

    def cut(self, exchange: Exchange, reason: str) -> None:
        """It has to end before another worker is asked."""
        self._endings.failed(exchange, 503, reason, retry_after_s=1.0, code="stopping")

    def undecided(self, exchange: Exchange, failed: FailedAttempt | None, error: PolicyError) -> None:
        """The policy itself failed."""
        if failed is not None and exchange.responder.started:
            self._break(exchange, failed, "policy", str(error), told=True)
        else:
            self._endings.failed(exchange, 500, str(error), code="policy_failed")

    def can_move(self, exchange: Exchange, worker: WorkerId) -> bool:
        """Whether somebody else may take it from a worker that is well, as things stand."""
        excluded = {worker, *exchange.failed_at}
        if exchange.responder.started:
            if exchange.migration is None or exchange.migrations >= self.settings.migration_limit:
                return False
            if exchange.migration.refusal() is not None:
                return False
            excluded |= self.unfit(exchange)
            split = not exchange.whole and exchange.migration.possible is Mechanism.REPLAY
        else:
            split = in_halves(exchange)
        return self._anybody(self._ledger.view(exchange.request, excluded), split=split)

    def _anybody(self, view: FleetView, *, split: bool) -> bool:
        """Whether a worker may take it, or, if it may be split, two that serve halves only."""
        eligible, halves = view.eligible, self._links.halves
        if halves.isdisjoint(view.workers):
            return bool(eligible.any())
        if any(fits and worker not in halves for fits, worker in zip(eligible, view.workers, strict=True)):
            return True
        return split and view.transfer.mode is not TransferMode.OFF and some_pair(view)

    # ---- before the first byte

    def _taken_away(
        self, exchange: Exchange, failed: FailedAttempt, error: InterruptedHereError, tried: set[WorkerId]
    ) -> bool:
        """Its worker was given up before it answered: its connection is closed there, so nothing computes on."""
        if not error.goes_on:
            self._endings.failed(exchange, 503, str(error), retry_after_s=1.0, code="stopping", fault=failed.fault)
            return False
        if failed.of_other and not some_pair(view := self._ledger.view(exchange.request, tried)):
            self._give_up(exchange, failed, NoRetry.NOBODY, reasons(view))
            return False
        if failed.fault is not None:
            exchange.tries.used(failed.fault)
        self._left(exchange, failed)
        self._traffic.retries[failed.fault or MOVED] += 1
        _log.warning("%s: request %s goes elsewhere: %s", failed.worker, exchange.request.id, failed.reason)
        return True

    def _give_up(
        self, exchange: Exchange, failed: FailedAttempt, why: NoRetry, more: str = "", *, told: bool = False
    ) -> None:
        """The client gets the last engine's answer, or what is wrong. `told`: the ledger knows of the fault."""
        self._traffic.retries_refused[why.value] += 1
        fault = None if told or failed.of_other else failed.fault
        if failed.ending is Ending.HELD and failed.relay is not None:
            self._endings.given_up(exchange, failed.worker, failed.relay, fault)
            return
        text = f"{why.text} ({more})" if more else why.text
        if failed.of_other:
            message = f"prefill at {failed.worker} failed: {failed.reason}; {text}"
            self._endings.failed(exchange, 503, message, retry_after_s=1.0, code="transfer_failed")
            return
        if isinstance(failed.error, EngineTimeoutError):
            status, message = 504, f"{failed.reason}; {text}"
        elif failed.fault in NOT_REACHED or failed.relay is None:
            status, message = 503, f"no engine could be reached, the last was {failed.worker}: {failed.reason}; {text}"
        else:
            status, message = 502, f"engine {failed.worker} broke off before answering: {failed.reason}; {text}"
        self._endings.failed(exchange, status, message, retry_after_s=1.0 if status == 503 else None, fault=fault)

    # ---- after it

    def unfit(self, exchange: Exchange) -> set[WorkerId]:
        """Workers that can't go on with a stream as the one that it began at would have."""
        migration = exchange.migration
        if migration is None or migration.begun_at is None or not migration.anything:
            return set()
        begun_at = migration.begun_at
        workers = self._ledger.models().get(exchange.request.model, ())
        return {worker for worker in workers if not self._links.of(worker).continues(begun_at)}

    async def somebody(self, exchange: Exchange, failed: FailedAttempt, tried: set[WorkerId]) -> set[WorkerId] | None:
        """Wait for a worker that may go on with a stream. Returns who is excluded; None: there was none in time."""
        began_s = self._loop.time()
        while True:
            now_s = self._loop.time()
            back = now_s - began_s > BACK_AFTER_S
            excluded = self.unfit(exchange) | (set() if back else tried)
            view = self._ledger.view(exchange.rest or exchange.request, excluded)
            if self._anybody(view, split=in_halves(exchange)):
                return excluded
            late = exchange.deadline_s is not None and now_s >= exchange.deadline_s
            if late or exchange.cut is not None or now_s >= self._waits_until_s(exchange):
                why = exchange.cut or f"no worker could go on with it ({reasons(view)})"
                why = "the request's total time is over" if late else why
                self._break(exchange, failed, "no_worker", why, told=True)
                return None
            self._waiting += 1
            try:
                await asyncio.sleep(min(MOST_APART_S, LOOK_EVERY_S * max(1.0, self._waiting / AT_ONCE)))
            finally:
                self._waiting -= 1

    def _waits_until_s(self, exchange: Exchange) -> float:
        return (exchange.stands_since_s or 0.0) + self.settings.migration_wait_s

    def _goes_on(self, exchange: Exchange, failed: FailedAttempt) -> bool:
        migration = exchange.migration
        end = None if migration is None else migration.end()
        if end is not None and exchange.relay is not None:
            self._endings.completed(exchange, exchange.relay, *end)
            return False
        refused = self._stays(exchange, failed)
        if refused is not None or migration is None:
            if isinstance(failed.error, CutShortError) and not exchange.migrations and exchange.relay is not None:
                self._endings.cut_short(exchange, exchange.relay)
            else:
                self._break(exchange, failed, *(refused or ("no_stream", "")))
            return False
        if failed.taken:
            exchange.migrations += 1
        exchange.progress = migration.progress()
        self._left(exchange, failed)
        migration.choose()
        exchange.rest = None
        if migration.mechanism is Mechanism.TOKEN_IDS:
            exchange.rest = _rest(exchange, migration.prompt_tokens or 0, migration.tokens)
        self._traffic.migrations[migration.mechanism, "begun"] += 1
        _log.warning(
            "%s: request %s goes on elsewhere by %s after %d events: %s",
            failed.worker,
            exchange.request.id,
            migration.mechanism,
            0 if exchange.relay is None else exchange.relay.events,
            failed.reason,
        )
        return True

    def _stays(self, exchange: Exchange, failed: FailedAttempt) -> tuple[str, str] | None:
        """Why a stream can't go on: a metric's label, and words. None: it can."""
        error, migration = failed.error, exchange.migration
        if isinstance(error, InterruptedHereError) and not error.goes_on:
            return "cut", ""
        if isinstance(error, DivergedError):
            return "diverged", ""
        if failed.fault is None and not isinstance(error, InterruptedHereError):
            return "not_the_engine", ""
        if migration is None:
            return ("off", exchange.stays) if exchange.stays else ("no_stream", "")
        if exchange.migrations >= self.settings.migration_limit:
            return "limit", f"it went on elsewhere {exchange.migrations} times already (failover.migration_limit)"
        moved = migration.progress() > exchange.progress
        lost = failed.taken and failed.fault not in SURVIVED
        if lost and exchange.migrations and not moved and not isinstance(error, InterruptedHereError):
            return "resent", "another engine failed it too before its next token: it may be what they fail of"
        if failed.taken or moved or exchange.stands_since_s is None:
            exchange.stands_since_s = self._loop.time()
        elif self._loop.time() >= self._waits_until_s(exchange):
            wait_s = self.settings.migration_wait_s
            return "no_worker", f"no worker took it within {wait_s:g} s (failover.migration_wait)"
        why = migration.refusal()
        return None if why is None else ("inexact", f"it can't go on elsewhere exactly: {why}")

    def _break(self, exchange: Exchange, failed: FailedAttempt, label: str, why: str, *, told: bool = False) -> None:
        self._traffic.migrations_refused[label] += 1
        if exchange.migrations and exchange.migration is not None:
            outcome = "diverged" if label == "diverged" else "broken"
            self._traffic.migrations[exchange.migration.mechanism, outcome] += 1
        message = f"the stream broke: {failed.reason}"
        if why:
            message += f"; {why}"
        relay = failed.relay or exchange.relay
        if relay is not None:
            self._endings.broken(exchange, failed.worker, relay, message, None if told else failed.fault)

    def _left(self, exchange: Exchange, failed: FailedAttempt) -> None:
        exchange.failed_at.append(failed.worker)
        asked_ms = None if failed.relay is None else failed.relay.retry_after_ms
        request_id, of_other = exchange.request.id, failed.of_other
        self._ledger.apply(
            AttemptFailed(request_id, self._clock(), failed.reason, failed.fault, asked_ms, of_other=of_other)
        )


def _rest(exchange: Exchange, prompt_tokens: int, generated: int) -> Request:
    """What the next worker has to do."""
    request = exchange.request
    limit = request.max_output_tokens
    return replace(
        request,
        prompt_tokens=(prompt_tokens or request.prompt_tokens) + generated,
        max_output_tokens=None if limit is None else max(1, limit - generated),
    )
