"""Endings: how requests end. The ledger and the traffic's counters hear of each exactly once."""

from __future__ import annotations

import logging

from pointsman.core.ledger.events import Failed, Finished, Refused
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.decision import Decision
from pointsman.core.model.fault import Fault
from pointsman.core.model.plan import Reject
from pointsman.core.model.view import Column, Exclusion
from pointsman.core.model.worker import WorkerId
from pointsman.edge.serving.answers import REQUEST_ID_HEADER, reasons, send_error
from pointsman.edge.serving.attempt import Attempt, Defect
from pointsman.edge.serving.breaks import KEY_REFUSED, fault_of_status
from pointsman.edge.serving.clock import Clock
from pointsman.edge.serving.exchange import Exchange
from pointsman.edge.telemetry.token_times import mean_itl_ms
from pointsman.edge.telemetry.traffic import Traffic
from pointsman.edge.wire.usage import Usage

_log = logging.getLogger("pointsman.serving")


class Endings:
    """Of the requests of one front end."""

    def __init__(self, ledger: Ledger, traffic: Traffic, clock: Clock) -> None:
        self._ledger = ledger
        self._traffic = traffic
        self._clock = clock

    def answered(self, exchange: Exchange, worker: WorkerId, relay: Attempt) -> None:
        """The client has the whole answer of an engine, whatever it says."""
        exchange.http_status = relay.status
        if relay.defect is not None:
            self._traffic.stream_errors[relay.defect] += 1
        if relay.defect == Defect.ERROR_EVENT:
            self._failed(exchange, worker, "its stream broke: the engine sent an error event", relay.fault)
        elif relay.status >= 500:
            self._failed(exchange, worker, f"it answered {relay.status}", fault_of_status(relay.status))
        elif relay.status >= 400:
            self._refused(exchange, relay)
        else:
            self._finished(exchange, relay)

    def given_up(self, exchange: Exchange, worker: WorkerId, relay: Attempt, fault: Fault | None) -> None:
        """The client gets the answer of an engine that could not, since no other one may answer.

        But for one that refuses our key: the client would look for the fault in its own.
        """
        if relay.status in KEY_REFUSED:
            message = (
                f"engine {worker} refuses the key of the front end: its api_key_env (or api_key) is to be corrected"
            )
            self.failed(exchange, 502, message, code="engine_key_refused", fault=fault)
            return
        relay.deliver()
        exchange.http_status = relay.status
        self._failed(exchange, worker, f"it answered {relay.status}", fault)

    def broken(self, exchange: Exchange, worker: WorkerId, relay: Attempt, message: str, fault: Fault | None) -> None:
        """An answer ends in the middle, a stream with an event that says why."""
        if relay.defect is not None:
            self._traffic.stream_errors[relay.defect] += 1
        relay.break_off(message)
        self._failed(exchange, worker, message, fault)

    def cut_short(self, exchange: Exchange, relay: Attempt) -> None:
        """A stream ended without its last event: it may have been all."""
        self._traffic.stream_errors[Defect.NO_DONE] += 1
        relay.end_as_it_is()
        self._finished(exchange, relay)

    def completed(self, exchange: Exchange, relay: Attempt, end: bytes, usage: Usage | None) -> None:
        """A stream whose answer the client has: only what comes after it was missing, which is known."""
        exchange.responder.write(end)
        exchange.responder.finish()
        self._finished(exchange, relay, usage)

    def rejected(self, exchange: Exchange, decision: Decision) -> None:
        """Nobody may take it."""
        plan = decision.plan
        reason = plan.reason if isinstance(plan, Reject) else f"plan {plan} can't be carried out"
        retry_after_ms = plan.retry_after_ms if isinstance(plan, Reject) else None
        exclusion = decision.view.column(Column.EXCLUSION)
        full = bool(((exclusion == Exclusion.QUEUE_FULL) | (exclusion == Exclusion.AT_CAP)).any())
        apart = f"; it can't be split between two engines: {exchange.whole}" if exchange.whole else ""
        self.failed(
            exchange,
            429 if full else 503,
            f"{reason} for model {exchange.request.model!r} ({reasons(decision.view)}){apart}",
            retry_after_s=(retry_after_ms or 1000.0) / 1000,
            code="engines_full" if full else "no_engine_available",
        )

    def failed(
        self,
        exchange: Exchange,
        status: int,
        message: str,
        *,
        retry_after_s: float | None = None,
        code: str | None = None,
        fault: Fault | None = None,
    ) -> None:
        """It ends with an error of our own, before its client got a byte."""
        self._ledger.apply(Failed(exchange.request.id, self._clock(), message, fault))
        self._traffic.responses[exchange.route, status] += 1
        exchange.status, exchange.http_status = "failed", status
        headers = {b"x-request-id": exchange.client_request_id, REQUEST_ID_HEADER: exchange.request.id.encode()}
        if retry_after_s is not None:
            headers[b"retry-after"] = b"%d" % max(1, round(retry_after_s))
        if exchange.explanation is not None:
            headers[b"x-pointsman-explain"] = exchange.explanation
        _log.warning("request %s: %d %s", exchange.request.id, status, message)
        send_error(exchange.responder, status, message, code=code, headers=headers)

    # ---- what an engine's answer came to

    def _failed(self, exchange: Exchange, worker: WorkerId, reason: str, fault: Fault | None) -> None:
        self._traffic.responses[exchange.route, exchange.http_status] += 1
        asked_ms = None if exchange.relay is None else exchange.relay.retry_after_ms
        self._ledger.apply(Failed(exchange.request.id, self._clock(), reason, fault, asked_ms))
        exchange.status = "failed"
        _log.warning("%s: request %s: %s", worker, exchange.request.id, reason)

    def _refused(self, exchange: Exchange, relay: Attempt) -> None:
        self._traffic.responses[exchange.route, relay.status] += 1
        self._ledger.apply(Refused(exchange.request.id, relay.last_ms, relay.status))
        exchange.status = "refused"

    def _finished(self, exchange: Exchange, relay: Attempt, told: Usage | None = None) -> None:
        usage, split = relay.usage or told, exchange.split
        moved = split is not None and split.fallback is None
        traffic, request = self._traffic, exchange.request
        traffic.responses[exchange.route, exchange.http_status] += 1
        self._ledger.apply(
            Finished(
                request.id,
                relay.last_ms,
                prompt_tokens=usage.prompt_tokens if usage else None,
                # Of a stream that went on elsewhere it says nothing about what the first worker had; what came from
                # another engine's KV counts as cached there, and what was cached at that one was told already.
                cached_tokens=usage.cached_tokens if usage and not exchange.migrations and not moved else None,
                output_tokens=usage.completion_tokens if usage else relay.events,
            )
        )
        exchange.status = "finished"
        if exchange.migrations and exchange.migration is not None:
            traffic.migrations[exchange.migration.mechanism, "finished"] += 1
        traffic.missing_usage += usage is None
        traffic.duration_s.observe((relay.last_ms - request.arrival_ms) / 1000)
        if relay.first_ms is None:
            return
        traffic.ttft_s.observe((relay.first_ms - request.arrival_ms) / 1000)
        tokens = usage.completion_tokens if usage else None
        itl_ms = mean_itl_ms(relay.first_ms, relay.last_ms, tokens, relay.events, request.sequences)
        if itl_ms is not None:
            traffic.itl_s.observe(itl_ms / 1000)
