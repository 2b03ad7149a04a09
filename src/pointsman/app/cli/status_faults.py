"""What requests failed of at a worker, as a line under the status table."""

from __future__ import annotations

from collections.abc import Iterator

from pointsman.edge.serving.status import WorkerStatus

_SHOWN_S = 3600.0
"""An older failure explains nothing of now."""


def fault_lines(worker: WorkerStatus) -> Iterator[str]:
    """For example `gpu-3/0: 2 attempts failed there (late 1, lost 1), the last one 12 s ago: no answer for 600 s`."""
    last = worker.last_fault
    if last is None or last.ago_s > _SHOWN_S:
        return
    total = sum(worker.faults.values())
    kinds = ", ".join(f"{fault} {count}" for fault, count in sorted(worker.faults.items()))
    attempts = "1 attempt failed there" if total == 1 else f"{total} attempts failed there"
    yield f"{worker.id}: {attempts} ({kinds}), the last one {last.ago_s:.0f} s ago: {last.reason}"
