"""AdminAuth: the admin port's own key."""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Awaitable, Callable, Iterator

from aiohttp import web
from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector

from pointsman.edge.serving.metric_families import counter
from pointsman.edge.serving.tenants.refusals import CHALLENGE
from pointsman.edge.telemetry import names
from pointsman.edge.wire.errors import error_body

OPEN = frozenset(("/health",))
"""What load balancers and orchestrators ask without a key."""
_BEARER = "bearer "
_HINT = "the admin port wants its key (auth.admin_key_env): send it as `Authorization: Bearer KEY`"

_log = logging.getLogger("pointsman.serving")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AdminAuth(Collector):
    """Lets in who shows the key; everybody where there is none."""

    def __init__(self, key: str | None) -> None:
        self._digest = _digest(key)
        self.refused = 0
        """Requests without the right key."""

    def change(self, key: str | None) -> None:
        """Another key from now on."""
        self._digest = _digest(key)

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Of the admin port's application."""
        if self._digest is None or request.path in OPEN or self._is_right(request.headers.get("Authorization", "")):
            return await handler(request)
        self.refused += 1
        if self.refused == 1:
            _log.warning("%s asked the admin port without its key (said once)", request.remote)
        return web.Response(
            status=401,
            body=error_body(401, _HINT, code="invalid_api_key"),
            content_type="application/json",
            headers={"www-authenticate": CHALLENGE.decode()},
        )

    def collect(self) -> Iterator[MetricFamily]:
        """Its metric; none where there is no key."""
        if self._digest is not None:
            yield counter(names.ADMIN_REFUSED, (), [((), self.refused)])

    def _is_right(self, authorization: str) -> bool:
        given = authorization[len(_BEARER) :] if authorization[: len(_BEARER)].lower() == _BEARER else ""
        # Of hashes, so that the time says nothing of the length either.
        return self._digest is not None and hmac.compare_digest(_digest(given.strip()) or b"", self._digest)


def _digest(key: str | None) -> bytes | None:
    return None if key is None else hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
