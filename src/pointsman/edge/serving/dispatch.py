"""Dispatcher: decides for one request, sends it to the engine, and to another one where that is right."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from pointsman.core.ledger.events import Admitted, AttemptFailed, Cancelled, Dispatched, Failed
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.decision import Decision
from pointsman.core.model.errors import PolicyError
from pointsman.core.model.fault import Fault
from pointsman.core.model.view import Column
from pointsman.core.model.worker import WorkerId
from pointsman.core.policies.chance import decision_chance
from pointsman.edge.serving.answers import reasons
from pointsman.edge.serving.breaks import EngineTimeoutError, InterruptedHereError, fault_of
from pointsman.edge.serving.clock import Clock
from pointsman.edge.serving.decision_record import DecisionRecorder
from pointsman.edge.serving.endings import Endings
from pointsman.edge.serving.engine_head import engine_headers
from pointsman.edge.serving.engine_links import EngineLink, EngineLinks
from pointsman.edge.serving.exchange import Exchange
from pointsman.edge.serving.explain import explanation_header
from pointsman.edge.serving.policies import ActivePolicy
from pointsman.edge.serving.relay import Ending, Relay
from pointsman.edge.serving.results import result_of
from pointsman.edge.serving.retries import NoRetry
from pointsman.edge.serving.timeouts import Timeouts
from pointsman.edge.telemetry.traffic import Traffic
from pointsman.edge.wire.body import ensure_stream_usage
from pointsman.edge.wire.http1_client import (
    UpstreamClosed,
    UpstreamConnectError,
    UpstreamConnection,
    UpstreamPool,
    request_head,
)

STALE_WITHIN_S = 0.05
"""A kept connection that ends this soon after a request was written to it had been closed before."""
CLIENT_LEFT = 499
"""Status under which requests of clients that left are counted; nobody sees it."""

MOVED = "drain"
"""Reason of retries of requests whose worker drains."""

MOST_NOTES = 50
"""Different ones that are counted each by itself."""
OTHER_NOTES = "others"

NOT_REACHED = frozenset((Fault.UNREACHABLE, Fault.CONNECT_LATE))

LIFTED_SAID_EVERY_MS = 60_000.0

_log = logging.getLogger("pointsman.serving")


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """A worker that did not answer a request, or not to its end."""

    worker: WorkerId
    reason: str
    fault: Fault | None
    relay: Relay | None
    """None: there was no connection."""
    ending: Ending = Ending.NOTHING_SENT


class Dispatcher:
    """Takes admitted requests to engines. One coroutine a request; cancelling it means that the client left."""

    def __init__(
        self,
        ledger: Ledger,
        policy: ActivePolicy,
        pool: UpstreamPool,
        links: EngineLinks,
        traffic: Traffic,
        timeouts: Timeouts,
        clock: Clock,
        seed: int,
        recorder: DecisionRecorder,
    ) -> None:
        self._ledger = ledger
        self._policy = policy
        self._pool = pool
        self._links = links
        self._traffic = traffic
        self._timeouts = timeouts
        self._clock = clock
        self._seed = seed
        self._recorder = recorder
        self._endings = Endings(ledger, traffic, clock)
        self._running: dict[str, Exchange] = {}
        """By the ids of their requests."""
        self._say_lifted_ms = -math.inf
        self._notes_logged: set[tuple[str, str]] = set()
        self._loop = asyncio.get_running_loop()

    def retime(self, timeouts: Timeouts) -> None:
        """Other time limits, for attempts that begin from now on."""
        self._timeouts = timeouts

    async def run(self, exchange: Exchange) -> None:
        """From admission to the end of the answer. The ledger hears of exactly one ending."""
        request = exchange.request
        self._ledger.apply(Admitted(request, request.arrival_ms))
        self._running[request.id] = exchange
        try:
            await self._attempts(exchange)
        except asyncio.CancelledError:
            if self._ledger.holds(request.id):
                self._ledger.apply(Cancelled(request.id, self._clock()))
                self._traffic.responses[exchange.route, CLIENT_LEFT] += 1
                exchange.status, exchange.http_status = "cancelled", CLIENT_LEFT
            raise
        except BaseException as error:
            if self._ledger.holds(request.id):
                self._ledger.apply(Failed(request.id, self._clock(), f"internal error: {error!r}"))
                self._traffic.responses[exchange.route, 500] += 1
                exchange.status, exchange.http_status = "failed", 500
            raise
        finally:
            del self._running[request.id]
            if exchange.ticket is not None:
                exchange.ticket.ended(result_of(exchange, self._clock()))
            self._recorder.ended(exchange)

    # ---- taking requests away from workers

    def migrate_from(self, worker: WorkerId, reason: str) -> int:
        """Every request there that can goes on elsewhere, and the worker sees its client leave. Returns how many do."""
        moved = 0
        for exchange in self._at(worker):
            if self._can_move(exchange, worker):
                self._interrupt(exchange, reason, None, goes_on=True)
                moved += 1
        return moved

    def cut(self, worker: WorkerId, reason: str) -> int:
        """Every request there ends with an error that says why. Returns how many do."""
        found = self._at(worker)
        for exchange in found:
            exchange.cut = reason
            self._interrupt(exchange, reason, None, goes_on=False)
        return len(found)

    def cut_all(self, reason: str) -> int:
        """The same of all requests, those that wait for a worker included."""
        found = list(self._running.values())
        for exchange in found:
            exchange.cut = reason
            self._interrupt(exchange, reason, None, goes_on=False)
        return len(found)

    def streams(self) -> Iterator[tuple[WorkerId, Relay]]:
        """Answers that are on their way, with the workers that they come from."""
        for exchange in self._running.values():
            if exchange.worker is not None and exchange.relay is not None:
                yield exchange.worker, exchange.relay

    def _at(self, worker: WorkerId) -> list[Exchange]:
        return [exchange for exchange in self._running.values() if exchange.worker == worker]

    def _can_move(self, exchange: Exchange, worker: WorkerId) -> bool:
        """Whether somebody else may take it, as things stand."""
        if exchange.responder.started:
            return False
        return bool(self._ledger.view(exchange.request, {worker, *exchange.failed_at}).eligible.any())

    def _interrupt(self, exchange: Exchange, reason: str, fault: Fault | None, *, goes_on: bool) -> None:
        if exchange.relay is not None:
            exchange.relay.interrupt(reason, fault, goes_on=goes_on)

    # ---- attempts

    async def _attempts(self, exchange: Exchange) -> None:
        """One worker after the other, until one answers or no further one may be asked."""
        tried: set[WorkerId] = set()
        failed: FailedAttempt | None = None
        while True:
            try:
                decision = self._decide(exchange, tried)
            except PolicyError as error:
                self._endings.failed(exchange, 500, str(error), code="policy_failed")
                return
            worker = decision.worker
            if worker is None:
                self._nobody(exchange, decision, failed)
                return
            exchange.attempts += 1
            exchange.worker = worker
            failed = await self._attempt(exchange, worker, self._links.of(worker))
            if failed is None:
                return
            exchange.worker = None
            tried.add(worker)
            if not self._goes_elsewhere(exchange, failed, tried):
                return

    # ---- what comes after a failed attempt

    def _goes_elsewhere(self, exchange: Exchange, failed: FailedAttempt, tried: set[WorkerId]) -> bool:
        if failed.ending is Ending.BROKEN and failed.relay is not None:
            message = f"the stream broke: {failed.reason}"
            self._endings.broken(exchange, failed.worker, failed.relay, message, failed.fault)
            return False
        error = None if failed.relay is None else failed.relay.error
        if isinstance(error, InterruptedHereError):
            return self._taken_away(exchange, failed, error)
        refusal = exchange.tries.refusal(failed.fault, budget_left=self._ledger.may_retry(self._clock()))
        if refusal is not None or failed.fault is None:
            self._give_up(exchange, failed, refusal or NoRetry.NOT_THE_ENGINE)
            return False
        if failed.fault not in NOT_REACHED:
            view = self._ledger.view(exchange.request, tried)
            if not view.eligible.any():
                self._give_up(exchange, failed, NoRetry.NOBODY, reasons(view))
                return False
        exchange.tries.used(failed.fault)
        exchange.failed_at.append(failed.worker)
        self._ledger.apply(AttemptFailed(exchange.request.id, self._clock(), failed.reason, failed.fault))
        self._traffic.retries[failed.fault] += 1
        _log.warning("%s: %s; trying another worker", failed.worker, failed.reason)
        return True

    def _taken_away(self, exchange: Exchange, failed: FailedAttempt, error: InterruptedHereError) -> bool:
        """Its worker was given up before it answered: its connection is closed there, so nothing computes on."""
        if not error.goes_on:
            self._endings.failed(exchange, 503, str(error), retry_after_s=1.0, code="stopping", fault=failed.fault)
            return False
        exchange.failed_at.append(failed.worker)
        self._ledger.apply(AttemptFailed(exchange.request.id, self._clock(), failed.reason, failed.fault))
        self._traffic.retries[failed.fault or MOVED] += 1
        _log.warning("%s: request %s goes elsewhere: %s", failed.worker, exchange.request.id, failed.reason)
        return True

    def _nobody(self, exchange: Exchange, decision: Decision, failed: FailedAttempt | None) -> None:
        """No worker may take it, or none but those that failed it."""
        if failed is None or failed.fault in NOT_REACHED:
            self._endings.rejected(exchange, decision)
        else:
            self._give_up(exchange, failed, NoRetry.NOBODY, reasons(decision.view), told=True)

    def _give_up(
        self, exchange: Exchange, failed: FailedAttempt, why: NoRetry, more: str = "", *, told: bool = False
    ) -> None:
        """The client gets the last engine's answer, or what is wrong. `told`: the ledger knows of the fault."""
        self._traffic.retries_refused[why.value] += 1
        fault = None if told else failed.fault
        if failed.ending is Ending.HELD and failed.relay is not None:
            self._endings.given_up(exchange, failed.worker, failed.relay, fault)
            return
        text = f"{why.text} ({more})" if more else why.text
        late = failed.relay is not None and isinstance(failed.relay.error, EngineTimeoutError)
        if late:
            status, message = 504, f"{failed.reason}; {text}"
        elif failed.fault in NOT_REACHED or failed.relay is None:
            status, message = 503, f"no engine could be reached, the last was {failed.worker}: {failed.reason}; {text}"
        else:
            status, message = 502, f"engine {failed.worker} broke off before answering: {failed.reason}; {text}"
        self._endings.failed(exchange, status, message, retry_after_s=1.0 if status == 503 else None, fault=fault)

    # ---- deciding

    def _decide(self, exchange: Exchange, tried: set[WorkerId]) -> Decision:
        """Decide and tell the ledger at once: the next decision sees this one. Raises PolicyError."""
        started = time.perf_counter()
        request, ledger = exchange.request, self._ledger
        now_ms = self._clock()
        view = ledger.view(request, tried)
        if view.guards_lifted:
            self._guards_lifted(now_ms)
        timing = ledger.timing
        chance = partial(decision_chance, self._seed, request.id)
        decision, exchange.ticket = self._policy.decide(request, view, timing, now_ms, chance)
        worker = decision.worker
        if worker is not None:
            row = view.workers.index(worker)
            cached, exact = int(view.table[Column.CACHED_TOKENS, row]), bool(view.table[Column.EXACT, row])
            ledger.apply(Dispatched(request.id, worker, now_ms, cached, exact))
            exchange.dispatched_ms = now_ms
        exchange.decision = decision
        self._recorder.decided(exchange, decision, timing)
        self._traffic.decision_s.observe(time.perf_counter() - started)
        if self._policy.shadows.active:
            exchange.shadows = self._policy.shadows.decide(request, view, timing, now_ms, chance, decision)
        if decision.note is not None:
            self._note(decision.policy, decision.note)
        if exchange.explain:
            exchange.explanation = explanation_header(decision)
        return decision

    def _guards_lifted(self, now_ms: float) -> None:
        self._traffic.guards_lifted += 1
        if now_ms >= self._say_lifted_ms:
            self._say_lifted_ms = now_ms + LIFTED_SAID_EVERY_MS
            _log.warning(
                "a guard (routing.guards) would leave no worker and is lifted; counted in pointsman_guards_lifted_total"
            )

    def _note(self, policy: str, note: str) -> None:
        """Notes are labels of a metric, so a policy that says something else each time is cut off."""
        if (policy, note) not in self._notes_logged and len(self._notes_logged) >= MOST_NOTES:
            note = OTHER_NOTES
        self._traffic.notes[policy, note] += 1
        if (policy, note) not in self._notes_logged:
            self._notes_logged.add((policy, note))
            _log.warning("policy %s: %s (said once; counted in pointsman_policy_fallbacks_total)", policy, note)

    # ---- one attempt

    async def _attempt(self, exchange: Exchange, worker: WorkerId, link: EngineLink) -> FailedAttempt | None:
        """None: it ended, and everybody knows how."""
        body = exchange.incoming.body
        if exchange.adds_usage and link.stream_usage:
            body = ensure_stream_usage(body)
        incoming = exchange.incoming
        head = request_head(
            incoming.method.encode(),
            incoming.path.encode("latin-1"),  # engines take no queries here, and one may hold a key
            link.origin,
            engine_headers(incoming.headers, exchange.client_request_id, link),
            len(body),
        )
        try:
            connection = self._pool.idle_connection(link.origin) or await self._pool.connect(link.origin)
        except UpstreamConnectError as error:
            return FailedAttempt(worker, str(error), fault_of(error), None)
        sent_s = self._loop.time()
        relay = await self._relayed(exchange, worker, connection, head, body)
        if _never_taken(relay, self._loop.time() - sent_s):
            self._traffic.retries["stale_connection"] += 1
            try:
                connection = await self._pool.connect(link.origin, fresh=True)
            except UpstreamConnectError as error:
                # It may have been the request that killed the engine.
                return FailedAttempt(worker, str(error), Fault.LOST, relay)
            relay = await self._relayed(exchange, worker, connection, head, body)
        return self._conclude(exchange, worker, relay)

    async def _relayed(
        self, exchange: Exchange, worker: WorkerId, connection: UpstreamConnection, head: bytes, body: bytes
    ) -> Relay:
        relay = Relay(exchange, worker, self._ledger, self._timeouts, self._clock)
        exchange.relay = relay
        relay.start(connection, head, body)
        if exchange.cut is not None:
            relay.interrupt(exchange.cut, goes_on=False)
        try:
            await relay.done
        except asyncio.CancelledError:
            relay.abandon()
            raise
        return relay

    def _conclude(self, exchange: Exchange, worker: WorkerId, relay: Relay) -> FailedAttempt | None:
        ending = relay.done.result()
        if ending is Ending.COMPLETE:
            self._endings.answered(exchange, worker, relay)
            return None
        reason = f"it answered {relay.status}" if relay.error is None else str(relay.error)
        return FailedAttempt(worker, reason, relay.fault, relay, ending)


def _never_taken(relay: Relay, lasted_s: float) -> bool:
    """A kept connection that turned out to be closed. If it closes later, the request may have been read before."""
    error = relay.error
    stale = isinstance(error, UpstreamClosed) and error.reused and not error.received
    return stale and lasted_s < STALE_WITHIN_S
