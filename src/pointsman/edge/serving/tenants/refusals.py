"""What a client is told whose request is not let in."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pointsman.core.limits.limits import Kind, Refusal
from pointsman.edge.serving.tenants.principal import shown
from pointsman.edge.wire.errors import BadRequest

CHALLENGE = b'Bearer realm="pointsman"'
_UNTIL_ONE_ENDS_MS = 1000.0
"""When to ask again is anybody's guess where a running request has to end first."""
_UNITS = {
    Kind.REQUESTS: "requests a minute",
    Kind.TOKENS: "tokens a minute",
    Kind.CONCURRENCY: "requests at the same time",
}


class NotLetInError(BadRequest):
    """An answer with headers of its own."""

    def __init__(self, status: int, message: str, code: str, headers: Mapping[bytes, bytes]) -> None:
        super().__init__(status, message, None, code)
        self.headers = headers


def no_key(message: str) -> NotLetInError:
    """401. An unknown key and one that expired get the same answer."""
    return NotLetInError(401, message, "invalid_api_key", {b"www-authenticate": CHALLENGE})


def beyond_limit(refusal: Refusal, headers: Mapping[bytes, bytes]) -> NotLetInError:
    """429, with the time after which it would pass."""
    wait_ms = _UNTIL_ONE_ENDS_MS if refusal.wait_ms is None else refusal.wait_ms
    when = "when a running one ends" if refusal.wait_ms is None else f"in {math.ceil(wait_ms) / 1000:.3f} s"
    message = (
        f"the limit of {shown(refusal.subject)} is reached: {refusal.limit:.15g} {_UNITS[refusal.kind]}; "
        f"this request would pass {when}"
    )
    retry = {
        b"retry-after": b"%d" % max(1, math.ceil(wait_ms / 1000)),
        b"retry-after-ms": b"%d" % max(1, math.ceil(wait_ms)),
    }
    return NotLetInError(429, message, "rate_limit_exceeded", {**headers, **retry})
