"""LegSender: what is asked of a second engine, as requests on the wire."""

from __future__ import annotations

from collections.abc import Set

from pointsman.core.model.worker import WorkerId
from pointsman.edge.engines.handover.protocol import Asked, LegRequest, Peer
from pointsman.edge.serving.engine_head import engine_headers
from pointsman.edge.serving.engine_links import EngineLink, EngineLinks
from pointsman.edge.serving.exchange import Exchange
from pointsman.edge.serving.legs.engine_call import EngineCall
from pointsman.edge.serving.legs.numbers import LegNumbers
from pointsman.edge.wire.http1_client import request_head

FREE_WITHIN_S = 5.0
"""For a call that frees what is kept; after that the engine's own lease does."""
_JSON = (b"content-type", b"application/json")


class LegSender:
    """Of one front end. `seed`: of the numbers of transfers."""

    def __init__(self, links: EngineLinks, seed: int | None) -> None:
        self._links = links
        self._numbers = LegNumbers(seed)

    @property
    def halves(self) -> Set[WorkerId]:
        """Workers that serve nothing but halves of requests."""
        return self._links.halves

    def peer(self, worker: WorkerId) -> Peer | None:
        """A worker as hand-shakes know it; None: it passes no KV on, or is not known."""
        link = self._link(worker)
        return None if link is None or link.kv is None else Peer(worker, link.url, link.kv, link.rank_number)

    def asked(self, exchange: Exchange, body: bytes) -> Asked:
        """The client's request for a new transfer, with the body that one engine would get."""
        return Asked(
            exchange.incoming.path,
            body,
            exchange.client_request_id,
            self._numbers.next(),
            streamed=exchange.request.streamed,
        )

    def leg(self, exchange: Exchange, worker: WorkerId, wanted: LegRequest, limit_s: float) -> EngineCall:
        """A leg beside the one that answers, with the client's headers."""
        link, incoming = self._links.of(worker), exchange.incoming
        fields = [*engine_headers(incoming.headers, exchange.client_request_id, link), *wanted.headers]
        return _call(worker, link, wanted, incoming.path, fields, limit_s, exchange.deadline_s)

    def freeing(self, worker: WorkerId, wanted: LegRequest) -> EngineCall | None:
        """A call that frees what is kept there; None where nobody knows how to reach it any more."""
        link = self._link(worker)
        if link is None:
            return None
        fields = [_JSON, *wanted.headers]
        if link.rank is not None:
            fields.append(link.rank)
        if link.api_key is not None:
            fields.append((b"authorization", b"Bearer " + link.api_key.encode()))
        return _call(worker, link, wanted, "/", fields, FREE_WITHIN_S, None)

    def _link(self, worker: WorkerId) -> EngineLink | None:
        try:
            return self._links.of(worker)
        except KeyError:
            return None


def _call(
    worker: WorkerId,
    link: EngineLink,
    wanted: LegRequest,
    path: str,
    fields: list[tuple[bytes, bytes]],
    limit_s: float,
    deadline_s: float | None,
) -> EngineCall:
    target = (wanted.path or path).encode("latin-1")
    head = request_head(wanted.method.encode(), target, link.origin, fields, len(wanted.body))
    return EngineCall(worker, link.origin, head, wanted.body, limit_s=limit_s, deadline_s=deadline_s)
