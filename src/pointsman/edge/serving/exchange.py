"""Exchange: one client request on its way through the front end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pointsman.core.model.decision import Decision
from pointsman.core.model.request import Request
from pointsman.core.model.worker import WorkerId
from pointsman.edge.decisions.legs import LegsTold
from pointsman.edge.decisions.record import DecisionRecord
from pointsman.edge.serving.attempt import Attempt
from pointsman.edge.serving.retries import Tries
from pointsman.edge.wire.http1_request import IncomingRequest
from pointsman.edge.wire.http1_responder import Responder

if TYPE_CHECKING:
    from pointsman.edge.serving.legs.split import Split
    from pointsman.edge.serving.migration.migration import Migration
    from pointsman.edge.serving.rollout import Ticket


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
    limit_headers: tuple[tuple[bytes, bytes], ...] = ()
    """What is left of its tenant's limits."""
    tries: Tries = field(default_factory=lambda: Tries(0))
    """Retries that it has left."""
    worker: WorkerId | None = None
    """Where it is now."""
    cut: str | None = None
    """Why it has to end, wherever it is."""
    attempts: int = 0
    sent: bool = False
    """An engine was sent it; not so where none could be connected to."""
    migration: Migration | None = None
    """What is kept of its stream so that it can go on elsewhere; None: it can't, `stays` says why."""
    stays: str = ""
    migrations: int = 0
    """Times that its stream went on elsewhere."""
    progress: int = 0
    """What the client had got when it last went on elsewhere."""
    stands_since_s: float | None = None
    """When its stream broke off there, on the event loop's clock; workers that do not take it count from the first."""
    rest: Request | None = None
    """What is left of it where it goes on from what another worker generated."""
    failed_at: list[WorkerId] = field(default_factory=list)
    """Workers that failed it, in order."""
    decision: Decision | None = None
    """The last one."""
    ticket: Ticket | None = None
    """Where it belongs in a rollout."""
    shadows: dict[str, WorkerId | None] = field(default_factory=dict)
    """What shadow policies chose the last time, by policy."""
    dispatched_ms: float | None = None
    split: Split | None = None
    """What the attempt that runs has at a second engine; None: nothing, as most."""
    waits_for_leg: bool = False
    """The engine that answers gets it once the other one is through."""
    whole: str = ""
    """Why KV is not moved for it any more; empty: it may be."""
    pinned_prefill: WorkerId | None = None
    """Set by the debug header `x-pointsman-prefill-worker`: this worker alone may compute its prompt for another one,
    and it does where the two can pass KV on."""
    legs: LegsTold | None = None
    """What came of moving KV for it."""
    record: DecisionRecord | None = None
    """What is kept of it; None until something was decided."""
    relay: Attempt | None = None
    """Of the last attempt that began."""
    status: str = ""
    """How it ended, as the decision log names it."""
    http_status: int = 0
    deadline_s: float | None = None
    """On the event loop's clock."""

    @property
    def arm(self) -> str | None:
        """Of a rollout: base or trial; None where none runs."""
        return None if self.ticket is None else self.ticket.place.arm.value
