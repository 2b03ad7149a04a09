"""The status document of one front end as lines and a table."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pointsman.app.cli.replica_lines import print_replicas
from pointsman.app.cli.rollout_table import print_rollout, print_shadows
from pointsman.app.cli.status_discovery import discovery_lines
from pointsman.app.cli.status_faults import fault_lines
from pointsman.app.cli.status_health import health_cell, health_lines
from pointsman.app.cli.status_kv import kv_lines, refused_lines, role_cell, shows_roles, shows_transfers, transfers_cell
from pointsman.app.cli.tenants_table import print_tenants
from pointsman.core.ledger.events import KvFeedState
from pointsman.core.ledger.snapshot import PROMPTS_ONLY
from pointsman.edge.serving.drain_report import DrainReport
from pointsman.edge.serving.status import EngineReport, KvStatus, RequestStatus, Status, TimesStatus, WorkerStatus

READY = "ready"
_FACTOR_SHOWN = 0.1
_STATE_STYLE = {READY: "green", PROMPTS_ONLY: "green", "draining": "yellow", "not_probed": "yellow"}


def print_status(console: Console, answer: Status, at: str = "") -> None:
    """All of it; `at` is added to the first line."""
    policy = answer.policy if answer.policy == answer.policy_in_force else f"{answer.policy} → {answer.policy_in_force}"
    console.print(f"pointsman {answer.version}{escape(at)}, policy [bold]{escape(policy)}[/bold]")
    console.print(_models(answer.models))
    console.print(_workers(answer.workers, others=answer.replicas is not None))
    if answer.replicas is not None:
        print_replicas(console, answer.replicas)
    if answer.phase != "serving":
        console.print(f"[yellow]this front end is {escape(answer.phase)}[/yellow]")
    for line in map(_drain, answer.drains):
        console.print(f"[yellow]{escape(line)}[/yellow]")
    for line in discovery_lines(answer.discovery):
        console.print(f"[yellow]{escape(line)}[/yellow]")
    for line in _troubles(answer):
        console.print(f"[red]{escape(line)}[/red]")
    for line in _kv_reasons(answer.workers):
        console.print(f"[yellow]{escape(line)}[/yellow]")
    for line in _movers(answer.workers):
        console.print(escape(line))
    console.print(_requests(answer.requests))
    for line in kv_lines(answer):
        console.print(escape(line), soft_wrap=True)
    for pair in answer.kv_pairs_refused:
        text = f"{pair.prefill} computes no prompts for {pair.decode}: {pair.reason}"
        console.print(f"[yellow]{escape(text)}[/yellow]")
    for line in refused_lines(answer.workers):
        console.print(f"[yellow]{escape(line)}[/yellow]")
    for fault in answer.certificate_faults:
        console.print(f"[red]certificates: those read before stay in force: {escape(fault)}[/red]")
    if answer.tenants is not None:
        print_tenants(console, answer.tenants)
    if answer.rollout is not None:
        print_rollout(console, answer.rollout)
    print_shadows(console, answer.shadows)


def _models(models: dict[str, list[str]]) -> str:
    if not models:
        return "models: none yet"
    return "models: " + ", ".join(f"{escape(model)} ({len(workers)})" for model, workers in sorted(models.items()))


def _workers(workers: list[WorkerStatus], *, others: bool) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    gpus = any(worker.gpu_use is not None for worker in workers)
    roles, transfers = shows_roles(workers), shows_transfers(workers)
    for name in ("worker", "kind", *(["role"] if roles else []), "state", "health", "KV events"):
        table.add_column(name, no_wrap=True)
    for name in (
        "running",
        *(["others"] if others else []),
        *(["transfers"] if transfers else []),
        "queued",
        "KV",
        *(["GPU"] if gpus else []),
        "requests",
        "failed",
        "cached",
        "predicted",
        "reported",
        "drift",
        "time error",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for worker in workers:
        style = _STATE_STYLE.get(worker.state, "red")
        table.add_row(
            escape(worker.id),
            worker.kind,
            *([role_cell(worker)] if roles else []),
            f"[{style}]{escape(worker.state)}[/{style}]",
            health_cell(worker.health),
            _kv(worker.kv),
            f"{worker.running} + {worker.foreign}" if worker.foreign else str(worker.running),
            *([str(worker.others)] if others else []),
            *([transfers_cell(worker)] if transfers else []),
            str(worker.queued),
            _percent(worker.kv_use),
            *([_gpu(worker)] if gpus else []),
            str(worker.requests_total),
            str(worker.failed_total),
            _percent(worker.cached_share),
            str(worker.predicted_cached_tokens),
            str(worker.reported_cached_tokens),
            _percent(worker.drift),
            _time_error(worker.times),
        )
    return table


def _gpu(worker: WorkerStatus) -> str:
    """How busy, and how full its memory where that is told: `72 %, 91 % full`."""
    full = "" if worker.gpu_memory is None else f", {_percent(worker.gpu_memory)} full"
    return _percent(worker.gpu_use) + full


def _kv(kv: KvStatus) -> str:
    """For example `partial 40 %`."""
    return escape(kv.state) if kv.state == KvFeedState.OFF else f"{escape(kv.state)} {_percent(kv.confidence)}"


def _time_error(times: TimesStatus | None) -> str:
    """Of predicted step times, lately; for a worker that is slower than its like how much."""
    if times is None or times.step.mape_percent is None:
        return "–"
    slower = f" ×{times.factor:.2f}" if abs(times.factor - 1) >= _FACTOR_SHOWN else ""
    return f"{times.step.mape_percent:.0f} %{slower}"


def _troubles(answer: Status) -> Iterator[str]:
    """Why a worker gets no requests, and which engine is no worker at all, or doesn't tell its load."""
    for worker in answer.workers:
        if worker.state not in (READY, PROMPTS_ONLY):
            yield f"{worker.id}: {worker.state}: {worker.reason}"
        yield from health_lines(worker)
        yield from fault_lines(worker)
        if worker.drift_reason:
            yield f"{worker.id}: cached tokens differ from what was predicted: {worker.drift_reason}"
    known = {worker.url for worker in answer.workers}
    for engine in answer.engines:
        if engine.url not in known:
            yield _engine(engine)
            continue
        if engine.load_unknown:
            yield f"{engine.name} ({engine.url}): its load is unknown: {engine.load_unknown}"
        if engine.gpu_unknown:
            yield f"{engine.name} ({engine.url}): how busy its GPUs are is unknown: {engine.gpu_unknown}"


def _drain(drain: DrainReport) -> str:
    """For example `gpu-3 drains for 40 s (scaled in): 3 requests there, they move in 560 s`."""
    said = f"{drain.engine} drains for {drain.since_s:.0f} s ({drain.reason}): "
    if drain.next_in_s is None:
        return said + "nothing is there any more"
    then = "they move" if drain.phase == "finishing" else "the rest is cut"
    return f"{said}{drain.in_flight} requests there, {then} in {drain.next_in_s:.0f} s"


def _engine(engine: EngineReport) -> str:
    return f"{engine.name} ({engine.url}): {engine.state}: {engine.reason}"


def _kv_reasons(workers: list[WorkerStatus]) -> Iterator[str]:
    """Why what workers hold isn't known exactly; those with the same reason in one line."""
    alike: dict[tuple[str, str], list[str]] = {}
    for worker in workers:
        if worker.kv.state != KvFeedState.COMPLETE:
            alike.setdefault((worker.kv.state, worker.kv.reason), []).append(worker.id)
    for (state, reason), ids in alike.items():
        yield f"KV events {state}: {reason or 'no reason given'} ({', '.join(ids)})"


def _movers(workers: list[WorkerStatus]) -> Iterator[str]:
    """How streams of workers go on elsewhere when they break off."""
    alike: dict[str, list[str]] = {}
    for worker in workers:
        if worker.migration:
            alike.setdefault(worker.migration, []).append(worker.id)
    if alike:
        said = "; ".join(f"by {how.replace('_', ' ')} ({', '.join(ids)})" for how, ids in alike.items())
        yield f"streams that break off go on elsewhere {said}"


def _requests(requests: RequestStatus) -> str:
    ttft = "–" if requests.ttft_mean_ms is None else f"{requests.ttft_mean_ms:.0f} ms"
    return (
        f"requests: {requests.running} running, {requests.waiting} waiting, {requests.finished_total} finished, "
        f"{requests.failed_total} failed, {requests.cancelled_total} cancelled, {requests.retries_total} retries"
        f"{f', {requests.migrations_total} migrations' if requests.migrations_total else ''}; "
        f"mean TTFT {ttft}, cached {_percent(requests.cached_share)}"
    )


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"
