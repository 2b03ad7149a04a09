"""Answers of our own, and the headers of relayed ones."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from pointsman.core.model.view import Column, Exclusion, FleetView
from pointsman.edge.serving.exchange import Exchange
from pointsman.edge.wire.errors import error_body
from pointsman.edge.wire.headers import NOT_PASSED_ON, RATE_LIMIT_HEADERS, Headers, passed_on
from pointsman.edge.wire.http1_responder import Responder

JSON = (b"content-type", b"application/json")
REQUEST_ID_HEADER = b"x-pointsman-request-id"
"""The id of the decision; `x-request-id` is the client's own where it gave one."""
EVENT_STREAM = b"text/event-stream"

_NOT_RELAYED = NOT_PASSED_ON | {
    b"x-request-id",
    REQUEST_ID_HEADER,
    # between the engine and us: its cookies have no way back, its challenges and limits are for our key
    b"set-cookie",
    b"www-authenticate",
    *RATE_LIMIT_HEADERS,
}


def send_json(responder: Responder, status: int, value: object) -> None:
    """A whole JSON answer."""
    responder.send(status, [JSON], msgspec.json.encode(value))


def send_error(
    responder: Responder,
    status: int,
    message: str,
    *,
    param: str | None = None,
    code: str | None = None,
    headers: Mapping[bytes, bytes] | None = None,
) -> None:
    """A whole answer in OpenAI's error shape."""
    body = error_body(status, message, param=param, code=code)
    responder.send(status, [JSON, *(headers or {}).items()], body)


def relayed_headers(headers: Headers, exchange: Exchange, worker: str) -> list[tuple[bytes, bytes]]:
    """The engine's headers, and who answered."""
    kept = list(passed_on(headers, _NOT_RELAYED))
    kept.append((b"x-request-id", exchange.client_request_id))
    kept.append((REQUEST_ID_HEADER, exchange.request.id.encode()))
    kept.append((b"x-pointsman-worker", worker.encode("latin-1", "replace")))
    if exchange.split is not None and exchange.split.prefill is not None:
        kept.append((b"x-pointsman-prefill-worker", exchange.split.prefill.encode("latin-1", "replace")))
    kept.extend(exchange.limit_headers)
    if exchange.explanation is not None:
        kept.append((b"x-pointsman-explain", exchange.explanation))
    return kept


def content_length(headers: Headers) -> int | None:
    """Bytes of a body, where its headers say."""
    for name, value in headers:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return None


def is_event_stream(headers: Headers) -> bool:
    """Whether a body is a stream of events."""
    return any(name == b"content-type" and value.lower().startswith(EVENT_STREAM) for name, value in headers)


def reasons(view: FleetView, limit: int = 8) -> str:
    """Why nobody could take a request: `a/0: draining; b/0: unreachable`."""
    exclusion = view.column(Column.EXCLUSION)
    listed = [
        f"{worker}: {Exclusion(int(code)).text}"
        for worker, code in zip(view.workers[:limit], exclusion[:limit], strict=True)
    ]
    more = len(view) - len(listed)
    return "; ".join(listed) + (f"; and {more} more" if more > 0 else "")
