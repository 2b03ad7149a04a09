"""Routes of the admin port for engines: list, register, delete, drain, resume, change their role."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from pointsman.core.model.errors import ConfigError
from pointsman.core.model.worker import Role
from pointsman.edge.configuration.duration import Duration
from pointsman.edge.serving.drains import Drains, UnknownEngineError
from pointsman.edge.serving.workers.registrar import Reach, Registrar
from pointsman.edge.serving.workers.report import WorkersDocument
from pointsman.edge.serving.workers.roles import TakenError
from pointsman.edge.wire.errors import error_body

MOST_BODY_BYTES = 65_536


class DrainBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of `POST /v1/workers/{name}/drain`, which may be left out."""

    reason: Annotated[str, Meta(min_length=1)] = "by hand"
    grace: str | None = None
    """What requests there get, such as `5m`, or `0s`: they move at once. Absent: `control-plane.drain_grace`."""


class RoleBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of `POST /v1/workers/{name}/role`."""

    role: Role


class FrontEndsReport(msgspec.Struct):
    """Which front ends did what was asked for."""

    reached: int
    missing: list[str]
    """They do it when they can be reached again."""


class ChangeReport(msgspec.Struct, omit_defaults=True):
    """Answer of what changes an engine."""

    name: str
    state: str
    """registered, named (another place names it already), draining, resumed, deleted, role …."""
    requests: int
    """Of this front end, that are there."""
    front_ends: FrontEndsReport
    url: str | None = None
    origin: str | None = None


class WorkerRoutes:
    """`/v1/workers`."""

    def __init__(self, registrar: Registrar, drains: Drains, document: Callable[[], WorkersDocument]) -> None:
        self._registrar = registrar
        self._drains = drains
        self._document = document

    def routes(self) -> list[web.RouteDef]:
        """For the admin server."""
        return [
            web.get("/v1/workers", self._get),
            web.post("/v1/workers", self._post),
            web.delete("/v1/workers/{name}", self._delete),
            web.post("/v1/workers/{name}/drain", self._drain),
            web.post("/v1/workers/{name}/resume", self._resume),
            web.post("/v1/workers/{name}/role", self._role),
        ]

    async def _get(self, request: web.Request) -> web.Response:
        return _json(200, self._document())

    async def _post(self, request: web.Request) -> web.Response:
        body = await request.read()
        if len(body) > MOST_BODY_BYTES:
            return _refused(413, f"a record of an engine has at most {MOST_BODY_BYTES} bytes")
        try:
            posted = await self._registrar.post(body)
        except ConfigError as error:
            return _refused(400, str(error))
        except TakenError as error:
            return _refused(409, str(error))
        report = self._report(posted.source.name, "registered", posted.reach)
        report.url, report.origin = posted.source.url, posted.origin
        if posted.origin != "api":
            report.state = "named"
        return _json(201 if posted.is_new else 200, report)

    async def _delete(self, request: web.Request) -> web.Response:
        name, now = request.match_info["name"], request.query.get("now", "false").lower()
        if now not in ("true", "false", "1", "0"):
            return _refused(400, f"now: expected true or false, not {now!r}", "now")
        try:
            reach = await self._registrar.delete(name, now=now in ("true", "1"), url=request.query.get("url"))
        except UnknownEngineError as error:
            return _refused(404, str(error))
        except TakenError as error:
            return _refused(409, str(error))
        drains = self._drains.of(name) is not None and self._drains.in_flight(name) > 0
        return _json(202 if drains else 200, self._report(name, "draining" if drains else "deleted", reach))

    async def _drain(self, request: web.Request) -> web.Response:
        name, body = request.match_info["name"], await request.read()
        try:
            wanted = msgspec.json.decode(body, type=DrainBody) if body.strip() else DrainBody()
            grace_s = None if wanted.grace is None else _grace_s(wanted.grace)
        except msgspec.MsgspecError as error:
            return _refused(400, str(error))
        except ValueError as error:
            return _refused(400, f"grace: expected {error}", "grace")
        try:
            reach = await self._registrar.drain(name, wanted.reason, grace_s)
        except UnknownEngineError as error:
            return _refused(404, str(error))
        return _json(202 if self._drains.in_flight(name) else 200, self._report(name, "draining", reach))

    async def _resume(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        try:
            reach = await self._registrar.resume(name)
        except UnknownEngineError as error:
            return _refused(404, str(error))
        except TakenError as error:
            return _refused(409, str(error))
        return _json(200, self._report(name, "resumed", reach))

    async def _role(self, request: web.Request) -> web.Response:
        name, body = request.match_info["name"], await request.read()
        try:
            wanted = msgspec.json.decode(body, type=RoleBody)
        except msgspec.MsgspecError as error:
            return _refused(400, f'expected {{"role": "prefill"}}, decode or both: {error}', "role")
        try:
            reach = await self._registrar.change_role(name, wanted.role)
        except UnknownEngineError as error:
            return _refused(404, str(error))
        except TakenError as error:
            return _refused(409, str(error))
        return _json(200, self._report(name, f"role {wanted.role}", reach))

    def _report(self, name: str, state: str, reach: Reach) -> ChangeReport:
        front_ends = FrontEndsReport(reach.reached, list(reach.missing))
        return ChangeReport(name, state, self._drains.in_flight(name), front_ends)


def _grace_s(text: str) -> float:
    """Raises ValueError."""
    return 0.0 if text.strip() in ("0", "0s") else Duration.parse(text).s


def _refused(status: int, message: str, param: str | None = None) -> web.Response:
    return web.Response(status=status, body=error_body(status, message, param=param), content_type="application/json")


def _json(status: int, value: object) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(value), content_type="application/json")
