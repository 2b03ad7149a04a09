"""Dispatcher: decides for one request, sends it to the engine, and to another one where that is right."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from pointsman.core.ledger.events import Admitted, Cancelled, Failed
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.errors import PolicyError
from pointsman.core.model.fault import Fault
from pointsman.core.model.worker import WorkerId
from pointsman.edge.engines.handover.protocol import LegRequest
from pointsman.edge.serving.attempt import Attempt, Ending
from pointsman.edge.serving.breaks import InterruptedHereError, fault_of
from pointsman.edge.serving.clock import Clock
from pointsman.edge.serving.decider import Decider
from pointsman.edge.serving.decision_record import DecisionRecorder
from pointsman.edge.serving.elsewhere import Elsewhere
from pointsman.edge.serving.endings import Endings
from pointsman.edge.serving.engine_head import engine_headers
from pointsman.edge.serving.engine_links import EngineLink, EngineLinks
from pointsman.edge.serving.exchange import Exchange
from pointsman.edge.serving.failed_attempt import FailedAttempt
from pointsman.edge.serving.failover import FailoverSettings
from pointsman.edge.serving.legs.decode_relay import DecodeRelay
from pointsman.edge.serving.legs.legs import Answered, Legs, NotMoved
from pointsman.edge.serving.legs.sender import LegSender
from pointsman.edge.serving.migration.ask import EngineAskError
from pointsman.edge.serving.migration.migration import Asked
from pointsman.edge.serving.migration.seam import NoSeamError
from pointsman.edge.serving.policies import ActivePolicy
from pointsman.edge.serving.relay import Relay
from pointsman.edge.serving.results import result_of
from pointsman.edge.serving.stalled import Stalled
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
        failover: FailoverSettings,
    ) -> None:
        self._ledger = ledger
        self._pool = pool
        self._links = links
        self._traffic = traffic
        self._timeouts = timeouts
        self._clock = clock
        self._recorder = recorder
        self.legs = Legs(ledger, pool, LegSender(links, seed), traffic, timeouts, clock)
        self._decider = Decider(ledger, policy, traffic, clock, seed, recorder, self.legs)
        self._endings = Endings(ledger, traffic, clock)
        self.elsewhere = Elsewhere(ledger, links, traffic, self._endings, failover, clock)
        self._stalled = Stalled(ledger, self.elsewhere, self.legs)
        self._running: dict[str, Exchange] = {}
        """By the ids of their requests."""
        self._loop = asyncio.get_running_loop()

    def retime(self, timeouts: Timeouts) -> None:
        """Other time limits, for attempts that begin from now on."""
        self._timeouts = self.legs.timeouts = timeouts

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
                self._ledger.apply(Failed(request.id, self._clock(), f"internal error: {type(error).__name__}"))
                self._traffic.responses[exchange.route, 500] += 1
                exchange.status, exchange.http_status = "failed", 500
            raise
        finally:
            if exchange.split is not None:
                self.legs.abandoned(exchange, exchange.split)
            del self._running[request.id]
            if exchange.ticket is not None:
                exchange.ticket.ended(result_of(exchange, self._clock()))
            self._recorder.ended(exchange)

    # ---- taking requests away from workers

    def migrate_from(self, worker: WorkerId, reason: str) -> int:
        """Every request there that can goes on elsewhere, and the worker sees its client leave. Returns how many do."""
        moved = sum(self.legs.take_away(exchange, worker, reason) for exchange in self._served_by(worker))
        for exchange in self._at(worker):
            relay = exchange.relay
            if exchange.waits_for_leg:
                if self.elsewhere.can_move(exchange, worker):
                    moved += self.legs.interrupt(exchange, InterruptedHereError(reason, None, goes_on=True))
            elif relay is not None and not relay.done.done() and self.elsewhere.can_move(exchange, worker):
                relay.interrupt(reason, goes_on=True)
                moved += 1
        return moved

    def cut(self, worker: WorkerId, reason: str) -> int:
        """Every request there ends with an error that says why. Returns how many do."""
        found = self._at(worker)
        for exchange in found:
            self._cut(exchange, reason)
        taken = 0
        for exchange in self._served_by(worker):
            if not self.legs.take_away(exchange, worker, reason):
                self._cut(exchange, reason)
            taken += 1
        return len(found) + taken

    def cut_all(self, reason: str) -> int:
        """The same of all requests, those that wait for a worker included."""
        found = list(self._running.values())
        for exchange in found:
            self._cut(exchange, reason)
        return len(found)

    def look(self) -> None:
        """What stands still at workers that were given up goes on elsewhere. Call it about every second."""
        self._stalled.look(self._running.values())
        self.legs.look()

    def streams(self) -> Iterator[tuple[WorkerId, Attempt]]:
        """Answers that are on their way, with the workers that they come from."""
        for exchange in self._running.values():
            if exchange.worker is not None and exchange.relay is not None:
                yield exchange.worker, exchange.relay

    def _at(self, worker: WorkerId) -> list[Exchange]:
        return [exchange for exchange in self._running.values() if exchange.worker == worker]

    def _served_by(self, worker: WorkerId) -> list[Exchange]:
        """Those that wait for KV of that worker, and are answered by another one. Not those whose answer has begun."""
        split = (one for one in self._running.values() if one.split and one.split.other.worker == worker)
        return [one for one in split if one.split and not one.split.done and not _begun(one)]

    def _cut(self, exchange: Exchange, reason: str) -> None:
        relay = exchange.relay
        if self.legs.interrupt(exchange, InterruptedHereError(reason, None, goes_on=False)):
            return
        if exchange.worker is None or relay is None or relay.done.done():
            exchange.cut = reason  # it waits for a worker, or for a connection: it hears of it then
        else:
            relay.interrupt(reason, goes_on=False)

    # ---- attempts

    async def _attempts(self, exchange: Exchange) -> None:
        """One worker after the other, until one answers or no further one may be asked."""
        tried: set[WorkerId] = set()
        failed: FailedAttempt | None = None
        while True:
            excluded = tried
            if failed is not None and exchange.responder.started:
                free = await self.elsewhere.somebody(exchange, failed, tried)
                if free is None:
                    return
                excluded = free
            elif exchange.cut is not None:
                self.elsewhere.cut(exchange, exchange.cut)
                return
            try:
                decision = self._decider.decide(exchange, excluded)
            except PolicyError as error:
                self.elsewhere.undecided(exchange, failed, error)
                return
            worker = decision.worker
            if worker is None:
                self.elsewhere.nobody(exchange, decision, failed)
                return
            exchange.attempts += 1
            exchange.worker = worker
            failed = await self._attempt(exchange, worker, self._links.of(worker))
            if failed is None:
                return
            exchange.worker = None
            tried.add(failed.worker)
            if not self.elsewhere.goes(exchange, failed, tried):
                return

    # ---- one attempt

    async def _attempt(self, exchange: Exchange, worker: WorkerId, link: EngineLink) -> FailedAttempt | None:
        """None: it ended, and everybody knows how."""
        split = exchange.split
        if split is None:
            return await self._sent(exchange, worker, link, None)
        found = await self.legs.begin(exchange, split, await self._body(exchange, link))
        if isinstance(found, LegRequest):
            failed = await self._sent(exchange, worker, link, found)
            if failed is None or split.done:
                return failed
            found = self.legs.failed(exchange, split, failed)
        if found is None:
            return await self._sent(exchange, worker, link, None)
        if isinstance(found, Answered):
            if exchange.responder.started:
                return FailedAttempt(found.worker, f"it answered {found.status} to what was to go on", None, None)
            return self._answered_by_leg(exchange, found)
        if isinstance(found, NotMoved):
            self._endings.failed(exchange, 503, found.reason, retry_after_s=1.0, code="transfer_failed")
            return None
        assert isinstance(found, FailedAttempt)
        return found

    def _answered_by_leg(self, exchange: Exchange, said: Answered) -> FailedAttempt | None:
        """The client gets what the second engine said."""
        relay = Relay(exchange, said.worker, self._ledger, self._timeouts, self._clock)
        exchange.relay = relay
        relay.on_head(said.status, said.headers)
        relay.on_data(said.body)
        relay.on_end()
        return self._conclude(exchange, said.worker, relay)

    async def _sent(
        self, exchange: Exchange, worker: WorkerId, link: EngineLink, leg: LegRequest | None
    ) -> FailedAttempt | None:
        """The engine that answers is asked, by what `leg` says where KV of another one is to come."""
        try:
            asked = await self._asked(exchange, link)
            connection = self._pool.idle_connection(link.origin) or await self._pool.connect(link.origin)
        except UpstreamConnectError as error:
            return FailedAttempt(worker, str(error), fault_of(error), None)
        except EngineAskError as error:
            return FailedAttempt(worker, str(error), error.fault, None, only_asked=True)
        except NoSeamError as error:
            return FailedAttempt(worker, str(error), None, None)
        incoming = exchange.incoming
        headers = engine_headers(incoming.headers, exchange.client_request_id, link)
        # engines take no queries here, and one may hold a key
        path = incoming.path.encode("latin-1") if asked is None or asked.path is None else asked.path
        if leg is None:
            body = self._with_usage(exchange, link, incoming.body if asked is None else asked.body)
        else:
            body, path = leg.body, path if leg.path is None else leg.path.encode("latin-1")
            headers += leg.headers
        head = request_head(incoming.method.encode(), path, link.origin, headers, len(body))
        sent_s = self._loop.time()
        relay = await self._relayed(exchange, worker, connection, head, body, asked)
        if _never_taken(relay, self._loop.time() - sent_s):
            self._traffic.retries["stale_connection"] += 1
            try:
                connection = await self._pool.connect(link.origin, fresh=True)
            except UpstreamConnectError as error:
                # It may have been the request that killed the engine.
                return FailedAttempt(worker, str(error), Fault.LOST, relay)
            relay = await self._relayed(exchange, worker, connection, head, body, asked)
        if isinstance(relay, DecodeRelay) and exchange.split is not None and relay.came:
            self.legs.succeeded(exchange, exchange.split, relay)
        return self._conclude(exchange, worker, relay)

    async def _body(self, exchange: Exchange, link: EngineLink) -> bytes:
        """What one engine would be sent that answers from the beginning, also where its client has a part of that."""
        asked = await self._asked(exchange, link)
        return self._with_usage(exchange, link, exchange.incoming.body if asked is None else asked.body)

    @staticmethod
    def _with_usage(exchange: Exchange, link: EngineLink, body: bytes) -> bytes:
        return ensure_stream_usage(body) if exchange.adds_usage and link.stream_usage else body

    async def _asked(self, exchange: Exchange, link: EngineLink) -> Asked | None:
        """What the engine is asked, if that is not just the client's body."""
        if exchange.migration is None:
            return None
        if exchange.responder.started:
            return await exchange.migration.next(link, self._pool)
        return exchange.migration.first(link)

    async def _relayed(
        self,
        exchange: Exchange,
        worker: WorkerId,
        connection: UpstreamConnection,
        head: bytes,
        body: bytes,
        asked: Asked | None,
    ) -> Relay:
        before = exchange.relay if exchange.responder.started else None
        reader = None if asked is None else asked.reader
        split = exchange.split
        if split is None or split.done:
            relay = Relay(exchange, worker, self._ledger, self._timeouts, self._clock, reader, before)
        else:
            relay = DecodeRelay(exchange, worker, self._ledger, self._timeouts, self._clock, reader, before)
        exchange.relay = relay
        relay.start(connection, head, body)
        if isinstance(relay, DecodeRelay) and split is not None:
            self.legs.sent(split, relay)
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


def _begun(exchange: Exchange) -> bool:
    """Its answer comes: all of the KV was there."""
    relay = exchange.relay
    return isinstance(relay, DecodeRelay) and relay.begun and not relay.done.done()


def _never_taken(relay: Relay, lasted_s: float) -> bool:
    """A kept connection that turned out to be closed. If it closes later, the request may have been read before."""
    error = relay.error
    stale = isinstance(error, UpstreamClosed) and error.reused and not error.received
    return stale and lasted_s < STALE_WITHIN_S
