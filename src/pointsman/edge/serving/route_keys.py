"""Reading the route key and the tenant of a request."""

from __future__ import annotations

import hashlib

import msgspec

from pointsman.edge.configuration.route_key import RouteKey, RouteKeySource
from pointsman.edge.telemetry.decision_row import hashed
from pointsman.edge.wire.http1_server import IncomingRequest

TENANT_HEADER = b"x-tenant-id"
MAX_KEY_CHARACTERS = 512
_KEY_HEADERS = frozenset((b"authorization", b"x-api-key", b"api-key"))


def tenant_of(incoming: IncomingRequest) -> str | None:
    """Where nobody is asked for a key: the header `x-tenant-id`; without it a hash of a key that is shown all the same,
    so that keys never show; else None."""
    shown = None
    for name, value in incoming.headers:
        if name == TENANT_HEADER and value:
            return value.decode("latin-1")[:MAX_KEY_CHARACTERS]
        if name in _KEY_HEADERS and shown is None:
            shown = value
    return f"key-{hashlib.blake2b(shown, digest_size=8).hexdigest()}" if shown else None


def route_key_of(selector: RouteKey | None, incoming: IncomingRequest, tenant: str | None) -> str | None:
    """A hash of what the selector finds, or None where the request has no such thing.

    A hash, since what is found may be a name or a secret, and records of decisions keep it.
    """
    if selector is None:
        return None
    found = _found(selector, incoming, tenant)
    return None if found is None else hashed(found)


def _found(selector: RouteKey, incoming: IncomingRequest, tenant: str | None) -> str | None:
    if selector.source is RouteKeySource.TENANT:
        return tenant
    if selector.source is RouteKeySource.HEADER:
        value = incoming.header(selector.name.encode())
        return value.decode("latin-1")[:MAX_KEY_CHARACTERS] if value else None
    return _body_field(incoming.body, selector.path)


def _body_field(body: bytes, path: tuple[str, ...]) -> str | None:
    """A field of the body as text. Only the objects on the path are decoded."""
    raw = body
    try:
        for name in path:
            members = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
            raw = bytes(members[name])
        value = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError, KeyError):
        return None
    if value is None or value == "":
        return None
    text = value if isinstance(value, str) else raw.decode()
    return text[:MAX_KEY_CHARACTERS]
