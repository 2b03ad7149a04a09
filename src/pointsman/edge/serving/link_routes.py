"""Routes of the admin port for links between machines: what is believed of them, and measurements for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from aiohttp import web

from pointsman.core.timing.link_learning import LinkRow
from pointsman.core.timing.link_times import SIZE_CLASSES_BYTES
from pointsman.edge.configuration.conflict import KeyConflictError
from pointsman.edge.configuration.links_file import LinksFile
from pointsman.edge.serving.link_feed import LinkFeed
from pointsman.edge.wire.errors import error_body

SIZE_NAMES = (*(f"{size >> 20}MiB" for size in SIZE_CLASSES_BYTES), "larger")
"""Of the classes of sizes, by the largest that each has."""


class LinkDocument(msgspec.Struct):
    """What is believed of one direction between two machines."""

    source: str
    target: str
    floor_ms: float
    gb_per_s: dict[str, float]
    """Decimal, by class of size."""
    spread: float
    """P90 of actual over predicted time."""
    seen: float
    """Transfers and measurements that it rests on, older ones counting less."""


class LinksDocument(msgspec.Struct):
    """`GET /v1/links`."""

    links: list[LinkDocument]


class LinksTaken(msgspec.Struct, omit_defaults=True):
    """Answer to `POST /v1/links`."""

    links: int
    measurements: int
    without_engines: list[str] = []
    """Machines named there on which this front end has no engine: what was measured of them is used by nobody."""
    machines: list[str] = []
    """Those on which it has some, where any is without."""


class LinkRoutes:
    """`/v1/links`."""

    def __init__(self, rows: Callable[[], Sequence[LinkRow]], feed: LinkFeed) -> None:
        self._rows = rows
        self._feed = feed

    def routes(self) -> list[web.RouteDef]:
        """For the admin server."""
        return [web.get("/v1/links", self._get), web.post("/v1/links", self._post)]

    async def _get(self, request: web.Request) -> web.Response:
        return _json(links_document(self._rows()))

    async def _post(self, request: web.Request) -> web.Response:
        try:
            file = msgspec.json.decode(await request.read(), type=LinksFile)
        except (msgspec.MsgspecError, RecursionError) as error:
            return _refused(f"expected what `pointsman doctor links --save FILE.json` writes: {error}")
        except KeyConflictError as error:
            return _refused(f"{error.key}: {error.message}")
        told = self._feed.tell(file.links, "the admin port")
        strange = self._feed.without_engines(file.links)
        self._feed.warn(strange, "the admin port")
        return _json(LinksTaken(len(file.links), told, strange, self._feed.with_engines() if strange else []))


def links_document(rows: Sequence[LinkRow]) -> LinksDocument:
    """For people and programs."""
    return LinksDocument(
        [
            LinkDocument(
                row.source,
                row.target,
                row.estimate.floor_ms,
                {name: speed / 1e6 for name, speed in zip(SIZE_NAMES, row.estimate.bytes_per_ms, strict=True)},
                row.estimate.spread,
                row.estimate.seen,
            )
            for row in rows
        ]
    )


def _refused(message: str) -> web.Response:
    return web.Response(status=400, body=error_body(400, message, param="links"), content_type="application/json")


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
