"""Whole answers in JSON."""

from __future__ import annotations

import msgspec

from pointsman.edge.wire.http1_responder import Responder

JSON_HEADERS = ((b"content-type", b"application/json"),)


def send_json(responder: Responder, body: object, status: int = 200) -> None:
    """A whole JSON answer."""
    responder.send(status, JSON_HEADERS, msgspec.json.encode(body))
