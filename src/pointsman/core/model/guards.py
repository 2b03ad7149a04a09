"""Guards: limits of an operator beyond which a worker gets no request, whatever a policy thinks of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Guards:
    """None = no such guard. A guard that would leave nobody is lifted, and the view says so."""

    gpu_use: float | None = None
    """Excluded are workers whose GPUs are busier, 0 to 1; those for decode never, as they look busy at any load."""
    kv_headroom: float | None = None
    """Excluded are workers whose free KV, after the prompt, would be a smaller share of the whole, 0 to 1."""
    topology_distance: int | None = None
    """Excluded are workers farther away from the front end; see Column.TOPOLOGY_DISTANCE."""


NO_GUARDS = Guards()
