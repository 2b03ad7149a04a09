"""Exchange: one client request on its way through the front end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pointsman.core.model.decision import Decision
from pointsman.core.model.request import Request
from pointsman.edge.wire.http1_request import IncomingRequest
from pointsman.edge.wire.http1_responder import Responder

if TYPE_CHECKING:
    from pointsman.edge.serving.relay import Relay


@dataclass(slots=True)
class Exchange:
    """Everything that dispatch and relay need of one request."""

    route: str
    """Path as clients call it, for metrics."""
    incoming: IncomingRequest
    responder: Responder
    request: Request
    client_request_id: bytes
    """Echoed to the client and sent to the engine."""
    ends_with_done: bool
    """Its stream has to end with `data: [DONE]`."""
    adds_usage: bool
    """The client did not ask for the usage event of its stream: we do, and keep it from the client."""
    explain: bool = False
    """The client wants the decision's summary in a header."""
    explanation: bytes | None = None
    attempts: int = 0
    decision: Decision | None = None
    """The last one."""
    dispatched_ms: float | None = None
    relay: Relay | None = None
    """Of the last attempt that began; kept only where decisions are logged."""
    status: str = ""
    """How it ended, as the decision log names it."""
    http_status: int = 0
    deadline_s: float | None = None
    """On the event loop's clock."""
