"""What hand-overs are asked in tests: a client's request and two peers."""

from __future__ import annotations

import json
from typing import Any

from pointsman.core.model.kv_shape import HandShake, KvShape
from pointsman.core.model.worker import WorkerId
from pointsman.edge.engines.handover.protocol import Asked, LegRequest, Peer

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
NUMBER = (1 << 42) + 5
MESSAGES = [{"role": "user", "content": "Hello"}]


def asked_for(body: bytes | dict[str, Any], path: str = CHAT, **said: Any) -> Asked:
    """A request of a client."""
    given: dict[str, Any] = {"number": NUMBER, "request_id": b"req-1", "streamed": b'"stream":true' in bytes_of(body)}
    return Asked(path, bytes_of(body), **(given | said))


def bytes_of(body: bytes | dict[str, Any]) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()


def peer(name: str, handshake: HandShake, url: str | None = None, **shape: Any) -> Peer:
    """An engine with this hand-shake."""
    return Peer(WorkerId(f"{name}/0"), url or f"http://{name}:8000", KvShape(handshake, **shape))


def read(leg: object) -> dict[str, Any]:
    """A leg's body."""
    assert isinstance(leg, LegRequest), leg
    found: dict[str, Any] = json.loads(leg.body)
    return found
