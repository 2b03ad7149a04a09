"""Listener: routes behind a port, and errors in vLLM's shape."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping

from pointsman.edge.engines.openai_server.errors import ApiError, error_body
from pointsman.edge.engines.openai_server.json_answer import JSON_HEADERS, send_json
from pointsman.edge.wire.http1_request import IncomingRequest
from pointsman.edge.wire.http1_responder import Responder
from pointsman.edge.wire.http1_server import HttpServer

Route = Callable[[IncomingRequest, Responder], Coroutine[None, None, None]]
Routes = Mapping[tuple[str, str], Route]
"""Handler by method and path."""


class Listener:
    """Listens for one engine, and can hang up and listen again on the same port."""

    def __init__(self, host: str, port: int, routes: Routes) -> None:
        """`port` 0: any free one. What `routes` holds may change while it listens."""
        self._host = host
        self.port = port
        """The actual one once it listens; it stays the same from then on."""
        self.routes = routes
        self.unready: str | None = None
        """Why everything is answered with 503; None: it is not."""
        self._http: HttpServer | None = None
        self._answering: set[Responder] = set()

    @property
    def url(self) -> str:
        """Base URL, without a slash at its end."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}"

    async def listen(self) -> None:
        """Raises OSError when the port is taken."""
        http = HttpServer(self._handle, on_reject=error_body)
        await http.start(self._host, self.port)
        self._http = http
        self.port = http.port

    async def hang_up(self) -> None:
        """Cut what is being answered, and listen no more. May be called twice."""
        for responder in list(self._answering):
            responder.abort()
        if self._http is not None:
            http, self._http = self._http, None
            await http.close(0.0)

    async def _handle(self, request: IncomingRequest, responder: Responder) -> None:
        if self.unready is not None:
            responder.send(503, JSON_HEADERS, error_body(503, self.unready))
            return
        route = self.routes.get((request.method, request.path))
        if route is None:
            known = any(path == request.path for _, path in self.routes)
            send_json(responder, {"detail": "Method Not Allowed" if known else "Not Found"}, 405 if known else 404)
            return
        self._answering.add(responder)
        try:
            await route(request, responder)
        except ApiError as error:
            if responder.started:
                raise
            responder.send(error.status, JSON_HEADERS, error.body())
        finally:
            self._answering.discard(responder)
