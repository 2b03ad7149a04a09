"""DecisionRecorder: from exchanges to records of decisions, kept in the ring and written to the log."""

from __future__ import annotations

import time
from functools import partial

from pointsman.core.model.decision import Decision
from pointsman.core.timing.fleet_times import FleetTimes
from pointsman.edge.decisions.record import DecisionRecord
from pointsman.edge.decisions.ring import DecisionRing
from pointsman.edge.decisions.sampling import Sampling
from pointsman.edge.serving.clock import Clock
from pointsman.edge.serving.exchange import Exchange
from pointsman.edge.telemetry.decision_log import DecisionLog
from pointsman.edge.telemetry.traffic import Traffic


class DecisionRecorder:
    """Of one front end. What it does on the event loop is to pass references on: rows are made later, or never.

    Args:
        log: None: none is written.
        seed: of the front end's random numbers.
    """

    def __init__(
        self,
        ring: DecisionRing,
        log: DecisionLog | None,
        sampling: Sampling,
        traffic: Traffic,
        clock: Clock,
        seed: int,
    ) -> None:
        self._ring = ring
        self._log = log
        self.sampling = sampling
        self._traffic = traffic
        self._clock = clock
        self._seed = seed

    def decided(self, exchange: Exchange, decision: Decision, timing: FleetTimes) -> None:
        """A decision was made; the last one of a request is kept."""
        record = exchange.record
        if record is None:
            record = exchange.record = self._new(exchange)
            self._ring.begin(record)
        record.decision, record.rest = decision, exchange.rest
        record.times = timing.rows(decision.view.workers)
        record.links, record.legs = timing.links, None
        record.dispatched_ms = exchange.dispatched_ms
        record.arm = exchange.arm
        record.attempts = exchange.attempts + (decision.worker is not None)

    def ended(self, exchange: Exchange) -> None:
        """A request ended; its exchange lets go of the relay."""
        relay, exchange.relay = exchange.relay, None
        record = exchange.record or self._new(exchange)
        record.status, record.http = exchange.status or "failed", exchange.http_status
        record.attempts, record.shadows = exchange.attempts, exchange.shadows
        record.migrations, record.failed_at = exchange.migrations, exchange.failed_at
        record.legs = exchange.legs
        if relay is not None:
            record.first_ms, record.gap_ms, record.events = relay.first_ms, relay.gap_ms, relay.events
            record.last_ms = relay.last_ms or None
            if exchange.status == "finished":
                record.usage = relay.usage
        record.conclude()
        self._ring.end(record)
        self._observe(record)
        if self._log is not None:
            self._write(self._log, record)

    def _new(self, exchange: Exchange) -> DecisionRecord:
        request = exchange.request
        arrived_epoch_ms = time.time() * 1000 - (self._clock() - request.arrival_ms)
        client_id = exchange.client_request_id
        return DecisionRecord(
            request, arrived_epoch_ms, self._seed, None if client_id == request.id.encode() else client_id
        )

    def _observe(self, record: DecisionRecord) -> None:
        """How far what was predicted came true."""
        if record.status != "finished":
            return
        saved_ms = record.saved_ms
        if saved_ms is not None:
            self._traffic.transfer_saved_ms += max(0.0, saved_ms)
            self._traffic.transfer_lost_ms += max(0.0, -saved_ms)
        if record.predicted_ttft_ms and record.ttft_ms is not None:
            self._traffic.ttft_ratio.observe(record.ttft_ms / record.predicted_ttft_ms)
        if record.predicted_tpot_ms and record.itl_ms is not None:
            self._traffic.tpot_ratio.observe(record.itl_ms / record.predicted_tpot_ms)

    def _write(self, log: DecisionLog, record: DecisionRecord) -> None:
        chance = self.sampling.chance(record)
        if chance is not None:
            log.add(partial(record.row, state=self.sampling.with_state(record), sample=chance))
