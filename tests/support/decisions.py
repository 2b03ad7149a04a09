"""Records of decisions on made-up fleets."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from pointsman.core.model.request import Request
from pointsman.core.model.view import FleetView
from pointsman.core.policies.chance import decision_chance
from pointsman.core.policies.registry import PolicyRegistry
from pointsman.core.timing.fleet_times import FleetTimes
from pointsman.core.timing.profiles import profile
from pointsman.core.timing.worker_times import WorkerTimes
from pointsman.edge.decisions.record import DecisionRecord

SEED = 11
STEP = profile("h100/llama-8b").step


def busy_view(workers: int = 4, seed: int = 0) -> FleetView:
    """Workers with all kinds of load; the last one is draining."""
    rng = random.Random(seed)
    names = [f"gpu-{i}/0" for i in range(workers)]

    def some(most: int) -> Sequence[int]:
        return [rng.randrange(most) for _ in names]

    return FleetView.of(
        names,
        running=some(30),
        foreign=some(5),
        prefill_tokens=some(4_000),
        waiting_first=some(3),
        kv_tokens=some(90_000),
        kv_capacity_tokens=[400_000] * workers,
        cached_tokens=some(2_000),
        exclusion=[0] * (workers - 1) + [4],
        joined_ms=[-1] * workers,
        weight_permille=[1000] * workers,
        gpu_use_permille=[-1] * workers,
    )


def times_of(view: FleetView, **fields: Any) -> FleetTimes:
    """Step times of all workers but the first, which nobody knows."""
    values: dict[str, Any] = {"overhead_ms": 1.5, "step_ratios": (1.1, 1.7), "ttft_ratios": (0.9, 2.1)} | fields
    return FleetTimes({worker: WorkerTimes(STEP, **values) for worker in view.workers[1:]})


def request(name: str = "pm-1-1", **fields: Any) -> Request:
    """One that arrived at 100 ms."""
    values: dict[str, Any] = {"model": "m", "arrival_ms": 100.0, "prompt_tokens": 3_000, "route_key": "0123abcd"}
    return Request(name, **(values | fields))


def decided(
    asked: Request | None = None, policy: str = "kv", view: FleetView | None = None, times: FleetTimes | None = None
) -> DecisionRecord:
    """A record of a request that runs; it was decided 2 ms after it arrived."""
    asked = asked or request()
    view = busy_view() if view is None else view
    times = times_of(view) if times is None else times
    now_ms = asked.arrival_ms + 2.0
    made = PolicyRegistry().get(policy).decide(asked, view, times, now_ms, decision_chance(SEED, asked.id))
    return DecisionRecord(
        asked,
        1e12 + asked.arrival_ms,
        SEED,
        decision=made,
        times=times.rows(view.workers),
        dispatched_ms=None if made.worker is None else now_ms,
        attempts=1,
    )


def ended(
    record: DecisionRecord, ttft_ms: float | None = 50.0, decode_ms: float = 490.0, **fields: Any
) -> DecisionRecord:
    """It ended, with 50 pieces of a stream; the first came so long after the decision."""
    record.status, record.http, record.events = "finished", 200, 50
    if ttft_ms is not None and record.dispatched_ms is not None:
        record.first_ms = record.dispatched_ms + ttft_ms
        record.last_ms = record.first_ms + decode_ms
    for name, value in fields.items():
        setattr(record, name, value)
    record.conclude()
    return record


def same_arrays(one: Any, other: Any) -> bool:
    """Whether two TimeRows hold the same numbers."""
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in one.__dataclass_fields__)
