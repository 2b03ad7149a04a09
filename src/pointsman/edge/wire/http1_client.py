"""The HTTP/1.1 client of the request path: what its users import."""

from __future__ import annotations

from pointsman.edge.wire.errors import (
    OwnShortageError,
    UpstreamClosed,
    UpstreamConnectError,
    UpstreamError,
    UpstreamProtocolError,
)
from pointsman.edge.wire.headers import Headers
from pointsman.edge.wire.http1_pool import UpstreamPool
from pointsman.edge.wire.http1_upstream import ResponseSink, UpstreamConnection
from pointsman.edge.wire.origin import Origin, request_head

__all__ = [
    "Headers",
    "Origin",
    "OwnShortageError",
    "ResponseSink",
    "UpstreamClosed",
    "UpstreamConnectError",
    "UpstreamConnection",
    "UpstreamError",
    "UpstreamPool",
    "UpstreamProtocolError",
    "request_head",
]
