"""`GET /v1/transfers` of the admin port: what moving KV saved and lost, over the decisions that are kept."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

import msgspec
from aiohttp import web

from pointsman.edge.decisions.record import RUNNING
from pointsman.edge.decisions.ring import DecisionRing
from pointsman.edge.decisions.search import Query, QueryError
from pointsman.edge.decisions.transfers import TransferSums
from pointsman.edge.wire.errors import error_body

PARAMETERS = ("since", "until", "model", "tenant", "policy", "worker", "prefill_worker", "last")
_TURN_S = 0.002
"""How long rows are made before the event loop gets its turn."""
_CANDIDATES = 8
"""Of a row: the best ones are enough."""


class TransferRoutes:
    """`machines`: on which machine each worker is."""

    def __init__(self, ring: DecisionRing, machines: Callable[[], Mapping[str, str]]) -> None:
        self._ring = ring
        self._machines = machines

    def routes(self) -> list[web.RouteDef]:
        """For the admin server."""
        return [web.get("/v1/transfers", self._sums)]

    async def _sums(self, request: web.Request) -> web.Response:
        try:
            query = query_of(list(request.query.items()))
        except QueryError as error:
            body = error_body(400, str(error), param=error.param)
            return web.Response(status=400, body=body, content_type="application/json")
        sums = TransferSums(self._machines())
        found, turn_ends = 0, time.perf_counter() + _TURN_S
        for record in list(self._ring):
            if record.status == RUNNING or not query.matches(record):
                continue
            if query.last is not None and found >= query.last:
                break
            found += 1
            if record.legs is None and (record.decision is None or record.decision.plans is None):
                sums.looked_at(record.arrived_epoch_ms)
            else:
                sums.add(record.row(_CANDIDATES))
            if time.perf_counter() > turn_ends:
                await asyncio.sleep(0)
                turn_ends = time.perf_counter() + _TURN_S
        report = sums.report()
        if self._ring.dropped:
            report.notes.append(
                f"older decisions made room for these: only the last {self._ring.kept:,} are kept (decision-log.ring)"
            )
        return web.Response(body=msgspec.json.encode(report), content_type="application/json")


def query_of(params: list[tuple[str, str]]) -> Query:
    """Which requests are summed up. Raises QueryError that names the parameter."""
    for name, _ in params:
        if name not in PARAMETERS:
            raise QueryError(name, f"unknown parameter; known: {', '.join(PARAMETERS)}")
    return Query.of(params)
