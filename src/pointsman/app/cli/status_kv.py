"""What the status document says of KV between workers, as lines and cells."""

from __future__ import annotations

from collections.abc import Iterator

from pointsman.core.model.worker import Role
from pointsman.edge.serving.kv_status import LinksStatus, TransfersStatus
from pointsman.edge.serving.status import Status, WorkerStatus

_MOST_NAMED = 8


def role_cell(worker: WorkerStatus) -> str:
    """`prefill`, with a mark where somebody ordered it at run time."""
    return f"{worker.role} (ordered)" if worker.role_ordered else worker.role


def transfers_cell(worker: WorkerStatus) -> str:
    """Under way from and to it: `2 out, 1 in`."""
    passing = worker.passing
    if passing is None or not passing.group:
        return "–"
    parts = [f"{number} {way}" for number, way in ((passing.out, "out"), (passing.into, "in")) if number]
    return ", ".join(parts) or "0"


def shows_roles(workers: list[WorkerStatus]) -> bool:
    """Whether any of them is not an ordinary one."""
    return any(worker.role != Role.BOTH or worker.role_ordered for worker in workers)


def shows_transfers(workers: list[WorkerStatus]) -> bool:
    """Whether any of them passes KV on."""
    return any(worker.passing is not None and worker.passing.group for worker in workers)


def kv_lines(answer: Status) -> Iterator[str]:
    """Sums and links; nothing where no KV is passed on."""
    if answer.transfers is not None:
        yield _transfers(answer.transfers)
    if answer.kv_links is not None:
        yield from _links(answer.kv_links)


def refused_lines(workers: list[WorkerStatus]) -> Iterator[str]:
    """Workers that can't do what they were ordered to do with some others; those with the same reason in one line."""
    for worker in workers:
        alike: dict[str, list[str]] = {}
        for other, reason in (worker.passing.refused if worker.passing is not None else {}).items():
            alike.setdefault(reason, []).append(other)
        for reason, others in alike.items():
            more = f" and {len(others) - _MOST_NAMED} more" if len(others) > _MOST_NAMED else ""
            yield f"{worker.id} shares no requests with {', '.join(others[:_MOST_NAMED])}{more}: {reason}"


def _transfers(told: TransfersStatus) -> str:
    failed = f" ({told.prefills_failed_total:,} more failed)" if told.prefills_failed_total else ""
    return (
        f"KV between workers: {told.under_way:,} transfers under way, {told.transfers_total:,} arrived with "
        f"{told.moved_tokens_total:,} tokens ({_gb(told.moved_bytes_total)}), {told.prefills_total:,} prompts computed "
        f"for others{failed}"
    )


def _links(told: LinksStatus) -> Iterator[str]:
    lost = told.without_engines
    if lost:
        yield f"links: no engine runs on {', '.join(lost)}, so nobody uses what is known of links there"
    each = f"{told.directions:,} {'direction' if told.directions == 1 else 'directions'} between machines known"
    slowest = f"{told.slowest} {_speed(told.slowest_bytes_per_ms)} after {told.slowest_floor_ms:.3g} ms"
    if told.directions == 1 or told.slowest == told.fastest:
        yield f"links: {each}: {slowest}"
    else:
        yield f"links: {each}, the slowest {slowest}, the fastest {told.fastest} {_speed(told.fastest_bytes_per_ms)}"


def _speed(bytes_per_ms: float) -> str:
    return f"{bytes_per_ms / 1e6:.3g} GB/s"


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.2f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.2f} MB"
