"""Heads of requests to engines: the client's headers without those that are between it and us."""

from __future__ import annotations

import re
from functools import lru_cache

from pointsman.edge.serving.engine_links import EngineLink
from pointsman.edge.serving.slo_headers import SLO_HEADERS
from pointsman.edge.wire.headers import NOT_PASSED_ON, Headers, passed_on

_NOT_FORWARDED = NOT_PASSED_ON | {
    # given anew
    b"x-request-id",
    # who asks is for us to know; engines would take it for a part of their cache's keys
    b"x-tenant-id",
    # usage is found in the bytes of the answer, which must not be compressed
    b"accept-encoding",
    # read here
    b"x-pointsman-explain",
    b"x-pointsman-migration",
    b"x-pointsman-worker",
    b"x-pointsman-prefill-worker",
    # where KV is fetched from is for us to say
    b"x-prefiller-host-port",
    *SLO_HEADERS,
}
_SECRET = re.compile(
    rb"(?:^|[-_])(?:auth|authorization|cookie2?|password|passwd|credentials?|jwt|assertion|oidc[-_]data"
    rb"|(?:access|auth|id|refresh|security|session)?tokens?"
    rb"|(?:client)?secret|(?:access|api|auth|functions?|master|private|secret|subscription)[-_]?keys?)$"
)


@lru_cache(maxsize=1024)
def is_secret(name: bytes) -> bool:
    """A header of that name holds a secret of the client: for us, not for the engine."""
    return _SECRET.search(name) is not None


def engine_headers(client: Headers, request_id: bytes, link: EngineLink) -> list[tuple[bytes, bytes]]:
    """The headers for the engine. What the client's `connection` header names stays here, too."""
    rank = link.rank
    passed = passed_on(client, _NOT_FORWARDED if rank is None else _NOT_FORWARDED | {rank[0]})
    fields = [field for field in passed if not is_secret(field[0])]
    fields.append((b"x-request-id", request_id))
    if rank is not None:
        fields.append(rank)
    if link.api_key is not None:
        fields.append((b"authorization", b"Bearer " + link.api_key.encode()))
    return fields
