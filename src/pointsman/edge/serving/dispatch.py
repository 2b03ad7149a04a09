"""Dispatcher: decides for one request, sends it to the engine, and tells the ledger how it ended."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from functools import partial

from pointsman.core.ledger.events import Admitted, AttemptFailed, Cancelled, Dispatched, Failed, Finished, Refused
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.decision import Decision
from pointsman.core.model.errors import PolicyError
from pointsman.core.model.plan import Reject
from pointsman.core.model.view import Column, Exclusion
from pointsman.core.model.worker import WorkerId
from pointsman.core.policies.chance import decision_chance
from pointsman.edge.serving.answers import REQUEST_ID_HEADER, reasons, send_error
from pointsman.edge.serving.clock import Clock
from pointsman.edge.serving.decision_record import DecisionRecorder
from pointsman.edge.serving.engine_head import engine_headers
from pointsman.edge.serving.engine_links import EngineLink, EngineLinks
from pointsman.edge.serving.exchange import Exchange
from pointsman.edge.serving.explain import explanation_header
from pointsman.edge.serving.policies import ActivePolicy
from pointsman.edge.serving.relay import Defect, Ending, EngineTimeoutError, Relay
from pointsman.edge.serving.results import result_of
from pointsman.edge.serving.timeouts import Timeouts
from pointsman.edge.telemetry.token_times import mean_itl_ms
from pointsman.edge.telemetry.traffic import Traffic
from pointsman.edge.wire.body import ensure_stream_usage
from pointsman.edge.wire.http1_client import (
    UpstreamClosed,
    UpstreamConnectError,
    UpstreamConnection,
    UpstreamPool,
    request_head,
)

MAX_ATTEMPTS = 3
STALE_WITHIN_S = 0.05
"""A kept connection that ends this soon after a request was written to it had been closed before."""
CLIENT_LEFT = 499
"""Status under which requests of clients that left are counted; nobody sees it."""

MOST_NOTES = 50
"""Different ones that are counted each by itself."""
OTHER_NOTES = "others"

LIFTED_SAID_EVERY_MS = 60_000.0

_log = logging.getLogger("pointsman.serving")


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
        self._say_lifted_ms = -math.inf
        self._notes_logged: set[tuple[str, str]] = set()
        self._loop = asyncio.get_running_loop()

    async def run(self, exchange: Exchange) -> None:
        """From admission to the end of the answer. The ledger hears of exactly one ending."""
        request = exchange.request
        self._ledger.apply(Admitted(request, request.arrival_ms))
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
            if exchange.ticket is not None:
                exchange.ticket.ended(result_of(exchange, self._clock()))
            self._recorder.ended(exchange)

    async def _attempts(self, exchange: Exchange) -> None:
        """Only what never reached an engine is tried again: an engine that took a request may be computing it."""
        tried: set[WorkerId] = set()
        while True:
            try:
                decision = self._decide(exchange, tried)
            except PolicyError as error:
                self._fail(exchange, 500, str(error), code="policy_failed")
                return
            worker = decision.worker
            if worker is None:
                self._reject(exchange, decision)
                return
            exchange.attempts += 1
            try:
                await self._attempt(exchange, worker, self._links.of(worker))
            except UpstreamConnectError as error:
                tried.add(worker)
                if not self._try_again(exchange, worker, error):
                    return
            else:
                return

    def _try_again(self, exchange: Exchange, worker: WorkerId, error: UpstreamConnectError) -> bool:
        self._ledger.apply(AttemptFailed(exchange.request.id, self._clock(), str(error), unreachable=_refused(error)))
        if exchange.attempts >= MAX_ATTEMPTS:
            self._fail(exchange, 503, f"no engine could be reached, the last was {worker}: {error}")
            return False
        self._traffic.retries["connect"] += 1
        _log.warning("%s: %s; trying another worker", worker, error)
        return True

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

    async def _attempt(self, exchange: Exchange, worker: WorkerId, link: EngineLink) -> None:
        body = exchange.incoming.body
        if exchange.adds_usage and link.stream_usage:
            body = ensure_stream_usage(body)
        incoming = exchange.incoming
        head = request_head(
            incoming.method.encode(),
            incoming.origin_form,
            link.origin,
            engine_headers(incoming.headers, exchange.client_request_id, link),
            len(body),
        )
        connection = self._pool.idle_connection(link.origin) or await self._pool.connect(link.origin)
        sent_s = self._loop.time()
        relay = await self._relayed(exchange, worker, connection, head, body)
        if _never_taken(relay, self._loop.time() - sent_s):
            self._traffic.retries["stale_connection"] += 1
            try:
                connection = await self._pool.connect(link.origin, fresh=True)
            except UpstreamConnectError as error:
                # It may have been the request that killed the engine: it must not kill another one.
                self._ledger.apply(AttemptFailed(exchange.request.id, self._clock(), str(error), _refused(error)))
                self._fail(exchange, 502, f"engine {worker} is gone: {error}")
                return
            relay = await self._relayed(exchange, worker, connection, head, body)
        self._conclude(exchange, worker, relay)

    async def _relayed(
        self, exchange: Exchange, worker: WorkerId, connection: UpstreamConnection, head: bytes, body: bytes
    ) -> Relay:
        relay = Relay(exchange, worker, self._ledger, self._timeouts, self._clock)
        exchange.relay = relay
        relay.start(connection, head, body)
        try:
            await relay.done
        except asyncio.CancelledError:
            relay.abandon()
            raise
        return relay

    # ---- endings

    def _conclude(self, exchange: Exchange, worker: WorkerId, relay: Relay) -> None:
        ending = relay.done.result()
        if ending is Ending.NOTHING_SENT:
            if isinstance(relay.error, EngineTimeoutError):
                self._fail(exchange, 504, f"{relay.error}; it was not sent to another engine, since it was accepted")
            else:
                self._fail(exchange, 502, f"engine {worker} broke off before answering: {relay.error}")
            return
        self._traffic.responses[exchange.route, relay.status] += 1
        exchange.http_status = relay.status
        if relay.defect is not None:
            self._traffic.stream_errors[relay.defect] += 1
        if ending is Ending.BROKEN or relay.defect == Defect.ERROR_EVENT:
            self._failed(exchange, worker, f"its stream broke: {relay.error or 'the engine sent an error event'}")
        elif relay.status >= 500:
            self._failed(exchange, worker, f"it answered {relay.status}")
        elif relay.status >= 400:
            self._ledger.apply(Refused(exchange.request.id, relay.last_ms, relay.status))
            exchange.status = "refused"
        else:
            self._finished(exchange, relay)

    def _failed(self, exchange: Exchange, worker: WorkerId, reason: str) -> None:
        self._ledger.apply(Failed(exchange.request.id, self._clock(), reason))
        exchange.status = "failed"
        _log.warning("%s: request %s: %s", worker, exchange.request.id, reason)

    def _finished(self, exchange: Exchange, relay: Relay) -> None:
        usage = relay.usage
        traffic = self._traffic
        request = exchange.request
        self._ledger.apply(
            Finished(
                request.id,
                relay.last_ms,
                prompt_tokens=usage.prompt_tokens if usage else None,
                cached_tokens=usage.cached_tokens if usage else None,
                output_tokens=usage.completion_tokens if usage else relay.events,
            )
        )
        exchange.status = "finished"
        traffic.missing_usage += usage is None
        traffic.duration_s.observe((relay.last_ms - request.arrival_ms) / 1000)
        if relay.first_ms is None:
            return
        traffic.ttft_s.observe((relay.first_ms - request.arrival_ms) / 1000)
        tokens = usage.completion_tokens if usage else None
        itl_ms = mean_itl_ms(relay.first_ms, relay.last_ms, tokens, relay.events, request.sequences)
        if itl_ms is not None:
            traffic.itl_s.observe(itl_ms / 1000)

    def _reject(self, exchange: Exchange, decision: Decision) -> None:
        plan = decision.plan
        reason = plan.reason if isinstance(plan, Reject) else f"plan {plan} can't be carried out"
        retry_after_ms = plan.retry_after_ms if isinstance(plan, Reject) else None
        exclusion = decision.view.column(Column.EXCLUSION)
        full = bool(((exclusion == Exclusion.QUEUE_FULL) | (exclusion == Exclusion.AT_CAP)).any())
        self._fail(
            exchange,
            429 if full else 503,
            f"{reason} for model {exchange.request.model!r} ({reasons(decision)})",
            retry_after_s=(retry_after_ms or 1000.0) / 1000,
            code="engines_full" if full else "no_engine_available",
        )

    def _fail(
        self,
        exchange: Exchange,
        status: int,
        message: str,
        *,
        retry_after_s: float | None = None,
        code: str | None = None,
    ) -> None:
        self._ledger.apply(Failed(exchange.request.id, self._clock(), message))
        self._traffic.responses[exchange.route, status] += 1
        exchange.status, exchange.http_status = "failed", status
        headers = {b"x-request-id": exchange.client_request_id, REQUEST_ID_HEADER: exchange.request.id.encode()}
        if retry_after_s is not None:
            headers[b"retry-after"] = b"%d" % max(1, round(retry_after_s))
        if exchange.explanation is not None:
            headers[b"x-pointsman-explain"] = exchange.explanation
        _log.warning("request %s: %d %s", exchange.request.id, status, message)
        send_error(exchange.responder, status, message, code=code, headers=headers)


def _never_taken(relay: Relay, lasted_s: float) -> bool:
    """A kept connection that turned out to be closed. If it closes later, the request may have been read before."""
    error = relay.error
    stale = isinstance(error, UpstreamClosed) and error.reused and not error.received
    return stale and lasted_s < STALE_WITHIN_S


def _refused(error: UpstreamConnectError) -> bool:
    """Nobody listens there. A connection that took too long proves nothing: the engine may be busy."""
    return isinstance(error.__cause__, OSError) and not isinstance(error.__cause__, TimeoutError)
