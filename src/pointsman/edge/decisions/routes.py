"""Routes of the admin port for decisions: one by its id, and a search."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

import msgspec
from aiohttp import web

from pointsman.edge.decisions.record import DecisionRecord
from pointsman.edge.decisions.ring import DecisionRing
from pointsman.edge.decisions.search import Query, QueryError, search
from pointsman.edge.telemetry.decision_row import MOST_CANDIDATES, DecisionRow
from pointsman.edge.wire.errors import error_body

_TURN_S = 0.002
"""How long rows are made before the event loop gets its turn."""
_MOST_CANDIDATES = 10_000

Seen = Callable[[str], bool]


class Decisions(msgspec.Struct):
    """Answer of `GET /v1/decisions`."""

    decisions: list[DecisionRow]
    matched: int
    """How many were found before `limit` cut them."""
    kept: int
    """In the ring."""
    running: int
    """Beside them: those whose requests have not ended."""
    dropped: int
    """That the ring had no room for any more."""
    bytes: int
    """That it holds, about."""
    oldest_ms: float | None = None
    """When the request of the oldest one in the ring arrived, ms since 1970."""


class DecisionRoutes:
    """`/v1/decisions`. `seen` says whether an id is one that this front end gave out."""

    def __init__(self, ring: DecisionRing, seen: Seen) -> None:
        self._ring = ring
        self._seen = seen

    def routes(self) -> list[web.RouteDef]:
        """For the admin server."""
        return [web.get("/v1/decisions", self._search), web.get("/v1/decisions/{id}", self._one)]

    async def _search(self, request: web.Request) -> web.Response:
        try:
            options = _Options.of(request.query.items(), MOST_CANDIDATES)
            query = Query.of(options.rest)
        except QueryError as error:
            return _refused(400, str(error), error.param)
        ring = self._ring
        found, matched = search(ring, query)
        oldest = ring.oldest
        head = Decisions(
            decisions=[],
            matched=matched,
            kept=ring.kept,
            running=ring.running,
            dropped=ring.dropped,
            bytes=ring.bytes,
            oldest_ms=None if oldest is None else round(oldest.arrived_epoch_ms, 3),
        )
        rows = [msgspec.Raw(row) for row in await _encoded(found, options)]
        return _json(msgspec.json.encode({**msgspec.structs.asdict(head), "decisions": rows}))

    async def _one(self, request: web.Request) -> web.Response:
        name = request.match_info["id"]
        try:
            options = _Options.of(request.query.items(), None)
            if options.rest:
                raise QueryError(options.rest[0][0], "unknown parameter; known: state, candidates")
        except QueryError as error:
            return _refused(400, str(error), error.param)
        record = self._ring.find(name)
        if record is None:
            return _refused(404, self._missing(name), "id")
        return _json(msgspec.json.encode(record.row(options.candidates, state=options.state)))

    def _missing(self, name: str) -> str:
        ring = self._ring
        if not ring.most:
            return "no decisions are kept in memory here: decision-log.ring is 0"
        if self._seen(name):
            return (
                f"{name} was answered here, but is no longer among the last {ring.kept} decisions that are kept "
                "(decision-log.ring, decision-log.ring_size); the decision log may have it"
            )
        return (
            f"{name} is no id that this front end gave out, nor what a client calls one of {ring.running} running and "
            f"the last {ring.kept} decisions that are kept"
        )


class _Options:
    """Parameters that say what of a decision is told."""

    def __init__(self, candidates: int | None, state: bool, rest: list[tuple[str, str]]) -> None:
        self.candidates = candidates
        self.state = state
        self.rest = rest

    @classmethod
    def of(cls, params: Iterable[tuple[str, str]], candidates: int | None) -> _Options:
        state, rest = False, []
        for name, value in params:
            if name == "state":
                if value not in ("0", "1"):
                    raise QueryError(name, f"expected 0 or 1, not {value!r}")
                state = value == "1"
            elif name == "candidates":
                if value != "all" and not (value.isascii() and value.isdigit() and 0 < int(value[:9]) <= 10_000):
                    raise QueryError(name, f"expected a number from 1 to {_MOST_CANDIDATES}, or all; not {value!r}")
                candidates = None if value == "all" else int(value)
            else:
                rest.append((name, value))
        return cls(candidates, state, rest)


async def _encoded(found: list[DecisionRecord], options: _Options) -> list[bytes]:
    """Rows as JSON. Streams that are being relayed are not held up by a long search."""
    rows: list[bytes] = []
    encode = msgspec.json.encode
    turn_ends = time.perf_counter() + _TURN_S
    for record in found:
        rows.append(encode(record.row(options.candidates, state=options.state)))
        if time.perf_counter() > turn_ends:
            await asyncio.sleep(0)
            turn_ends = time.perf_counter() + _TURN_S
    return rows


def _refused(status: int, message: str, param: str) -> web.Response:
    return web.Response(status=status, body=error_body(status, message, param=param), content_type="application/json")


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")
