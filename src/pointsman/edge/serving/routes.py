"""Routes: which path and method does what, for clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from urllib.parse import unquote

from pointsman.core.ledger.ledger import Ledger
from pointsman.edge.serving.answers import send_error, send_json
from pointsman.edge.serving.bodies import (
    ReadBody,
    read_chat,
    read_completion,
    read_embedding,
    read_responses,
)
from pointsman.edge.serving.dispatch import Dispatcher
from pointsman.edge.serving.intake import Intake
from pointsman.edge.serving.shutdown import Shutdown
from pointsman.edge.serving.tenants.gate import Gate
from pointsman.edge.serving.tenants.refusals import NotLetInError
from pointsman.edge.telemetry.traffic import Traffic
from pointsman.edge.wire.errors import BadRequest
from pointsman.edge.wire.http1_request import IncomingRequest
from pointsman.edge.wire.http1_responder import Responder

GENERATING: dict[str, ReadBody] = {
    "/v1/chat/completions": read_chat,
    "/v1/completions": read_completion,
    "/v1/embeddings": read_embedding,
    "/v1/responses": read_responses,
}
"""Routes that go to an engine."""

_MODELS = "/v1/models"
NO_ROUTE = "none"
"""Under which requests are counted that are for no known route, or are no proper requests."""


class Routes:
    """The handler of the client port."""

    def __init__(
        self,
        ledger: Ledger,
        intake: Intake,
        dispatcher: Dispatcher,
        traffic: Traffic,
        shutdown: Callable[[], Shutdown],
        gate: Gate,
    ) -> None:
        self._ledger = ledger
        self._intake = intake
        self._dispatcher = dispatcher
        self._traffic = traffic
        self._shutdown = shutdown
        self._gate = gate
        self._started_s = int(time.time())
        self._loop = asyncio.get_running_loop()

    async def handle(self, incoming: IncomingRequest, responder: Responder) -> None:
        """Answer one request."""
        read_body = GENERATING.get(incoming.path)
        if read_body is not None and incoming.method == "POST":
            await self._generate(read_body, incoming, responder)
        elif read_body is not None:
            self._wrong_method(incoming, responder, "POST")
        elif incoming.method in ("GET", "HEAD"):
            self._get(incoming, responder)
        elif incoming.path in ("/health", "/live", "/ready") or incoming.path.startswith(_MODELS):
            self._wrong_method(incoming, responder, "GET")
        else:
            self._not_found(incoming, responder)

    async def _generate(self, read_body: ReadBody, incoming: IncomingRequest, responder: Responder) -> None:
        if not self._shutdown().accepting:
            self._error(responder, incoming.path, 503, "the front end is stopping; ask another one", "stopping")
            return
        gate = self._gate if self._gate.active else None
        try:
            principal = None if gate is None else gate.admit(incoming)
            exchange = await self._intake.exchange(
                incoming.path, read_body, incoming, responder, self._loop.time(), principal
            )
            grant = None if gate is None or principal is None else gate.reserve(principal, exchange)
        except BadRequest as error:
            self._traffic.responses[incoming.path, error.status] += 1
            headers = error.headers if isinstance(error, NotLetInError) else None
            if error.status == 503:
                headers = {b"retry-after": b"1"}
            send_error(responder, error.status, error.message, param=error.param, code=error.code, headers=headers)
            return
        if gate is None or grant is None:
            await self._dispatcher.run(exchange)
            return
        try:
            await self._dispatcher.run(exchange)
        finally:
            gate.ended(grant, exchange)

    def _get(self, incoming: IncomingRequest, responder: Responder) -> None:
        path = incoming.path
        if path in ("/health", "/live"):
            send_json(responder, 200, {"status": "ok"})
        elif path == "/ready":
            self._ready(responder)
        elif path == _MODELS or path.startswith(_MODELS + "/"):
            self._models(incoming, responder)
        else:
            self._not_found(incoming, responder)

    def _models(self, incoming: IncomingRequest, responder: Responder) -> None:
        if self._gate.asks_for_keys:
            try:
                self._gate.identify(incoming)
            except NotLetInError as error:
                self._traffic.responses[NO_ROUTE, error.status] += 1
                send_error(responder, error.status, error.message, code=error.code, headers=error.headers)
                return
        if incoming.path != _MODELS:
            self._one_model(unquote(incoming.path.removeprefix(_MODELS + "/")), responder)
            return
        send_json(responder, 200, {"object": "list", "data": [self._model(m) for m in sorted(self._ledger.models())]})

    def _ready(self, responder: Responder) -> None:
        workers = self._ledger.snapshot().workers
        usable = sum(worker.usable for worker in workers)
        if not self._shutdown().ready:
            send_json(responder, 503, {"status": "stopping"})
        elif usable:
            send_json(responder, 200, {"status": "ready", "workers": usable})
        else:
            document: dict[str, object] = {"status": "no usable worker"}
            if not self._gate.asks_for_keys:  # reasons hold addresses, which are nothing for everybody then
                document["workers"] = {worker.id: f"{worker.state}: {worker.reason}" for worker in workers}
            send_json(responder, 503, document)

    def _one_model(self, model: str, responder: Responder) -> None:
        if self._ledger.serves(model):
            send_json(responder, 200, self._model(model))
        else:
            send_error(responder, 404, f"model {model!r} is not served here", param="model", code="model_not_found")

    def _model(self, model: str) -> dict[str, object]:
        described: dict[str, object] = {
            "id": model,
            "object": "model",
            "created": self._started_s,
            "owned_by": "pointsman",
        }
        context = self._ledger.context_tokens(model)
        if context is not None:
            described["max_model_len"] = context
        return described

    def _wrong_method(self, incoming: IncomingRequest, responder: Responder, allowed: str) -> None:
        message = f"{incoming.path} takes {allowed}, not {incoming.method}"
        self._traffic.responses[NO_ROUTE, 405] += 1
        send_error(responder, 405, message, code="method_not_allowed", headers={b"allow": allowed.encode()})

    def _not_found(self, incoming: IncomingRequest, responder: Responder) -> None:
        known = ", ".join([*GENERATING, _MODELS, "/health", "/live", "/ready"])
        self._error(responder, NO_ROUTE, 404, f"no route {incoming.path}; there are {known}", "route_not_found")

    def _error(self, responder: Responder, route: str, status: int, message: str, code: str) -> None:
        self._traffic.responses[route, status] += 1
        headers = {b"retry-after": b"1"} if status == 503 else None
        send_error(responder, status, message, code=code, headers=headers)
