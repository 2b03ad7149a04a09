"""What every decision has to keep to, whoever wrote the policy."""

from __future__ import annotations

from pointsman.core.model.errors import PolicyError
from pointsman.core.model.view import Column, Exclusion, FleetView
from pointsman.core.model.worker import WorkerId


def check_choice(worker: WorkerId | None, view: FleetView) -> None:
    """Raises PolicyError for a worker that may not take the request."""
    if worker is None:
        return
    if worker not in view.workers:
        raise PolicyError(f"it chose {worker}, which is no candidate")
    reason = int(view.table[Column.EXCLUSION, view.workers.index(worker)])
    if reason:
        raise PolicyError(f"it chose {worker}, which is excluded: {Exclusion(reason).text}")
