"""Routes of the admin port that read the configuration again, or have front ends replaced."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from aiohttp import web

from pointsman.core.model.errors import PointsmanError
from pointsman.edge.serving.reload.reloader import Reloader
from pointsman.edge.wire.errors import error_body


class ReloadRoutes:
    """`POST /v1/reload` and `POST /v1/rollover`. Without a reloader there is nothing to read again."""

    def __init__(self, reloader: Callable[[], Reloader | None]) -> None:
        self._reloader = reloader

    def routes(self) -> list[web.RouteDef]:
        """For the admin server."""
        return [web.post("/v1/reload", self._reload), web.post("/v1/rollover", self._roll_over)]

    async def _reload(self, request: web.Request) -> web.Response:
        reloader = self._reloader()
        if reloader is None:
            return _refused(409, "this front end was not started by `pointsman serve`: it has nothing to read again")
        try:
            report = await reloader.reload("asked on the admin port")
        except PointsmanError as error:
            return _refused(400, str(error))
        return web.Response(body=msgspec.json.encode(report), content_type="application/json")

    async def _roll_over(self, request: web.Request) -> web.Response:
        reloader = self._reloader()
        if reloader is None or not reloader.can_roll_over():
            return _refused(
                409, "this front end is the only one here: only those of `serve --processes N` replace each other"
            )
        try:
            await reloader.roll_over()
        except PointsmanError as error:
            return _refused(400, str(error))
        return web.json_response({"status": "front ends are replaced one by one; the log says how it goes"}, status=202)


def _refused(status: int, message: str) -> web.Response:
    return web.Response(status=status, body=error_body(status, message), content_type="application/json")
