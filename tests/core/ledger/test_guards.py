"""Limits of an operator: each excludes with its reason, unknown excludes nobody, and somebody is always left."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pointsman.core.ledger import events as ev
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.guards import Guards
from pointsman.core.model.request import Request
from pointsman.core.model.view import Column, Exclusion
from pointsman.core.model.worker import Role, WorkerSpec, worker_id

NONE, GPU_BUSY, KV_SHORT, TOO_FAR = Exclusion.NONE, Exclusion.GPU_BUSY, Exclusion.KV_SHORT, Exclusion.TOO_FAR


def fleet(guards: Guards, *specs: WorkerSpec) -> Ledger:
    ledger = Ledger(guards=guards)
    for spec in specs:
        ledger.apply(ev.WorkerJoined(spec, 0.0))
        ledger.apply(ev.HealthRead(spec.id, 0.0, True, True, "answers"))
    return ledger


def spec(name: str, **more) -> WorkerSpec:
    return WorkerSpec(worker_id(name), f"http://{name}", "vllm", ("m",), **more)


def judged(ledger: Ledger, tokens: int = 10, **more) -> tuple[list[Exclusion], bool]:
    view = ledger.view(Request("asks", "m", 0.0, tokens, **more))
    return [Exclusion(int(e)) for e in view.column(Column.EXCLUSION)], view.guards_lifted


def test_busy_gpus_exclude_but_those_that_nobody_knows_and_those_that_decode() -> None:
    ledger = fleet(Guards(gpu_use=0.8), spec("a"), spec("b"), spec("c"), spec("d", role=Role.DECODE))
    for name, use in (("a", 0.81), ("b", 0.8), ("d", 1.0)):
        ledger.apply(ev.GpuRead(worker_id(name), 0.0, use))
    assert judged(ledger) == ([GPU_BUSY, NONE, NONE, NONE], False)
    assert ledger.view(Request("r", "m", 0.0, 1)).column(Column.GPU_USE_PERMILLE).tolist() == [810, 800, -1, 1000]
    ledger.apply(ev.GpuRead(worker_id("a"), 1.0, None))
    assert judged(ledger) == ([NONE, NONE, NONE, NONE], False)


def test_kv_that_would_be_short_excludes() -> None:
    ledger = fleet(
        Guards(kv_headroom=0.1),
        spec("a", kv_capacity_tokens=1000),
        spec("b", kv_capacity_tokens=1000),
        spec("c"),
    )
    ledger.apply(ev.MetricsRead(worker_id("a"), 0.0, 1, 0, 0.7))
    assert judged(ledger, 200)[0] == [NONE, NONE, NONE]
    assert judged(ledger, 201)[0] == [KV_SHORT, NONE, NONE]
    # What was sent since the reading counts, too.
    ledger.apply(ev.Admitted(Request("one", "m", 0.0, 150), 0.0))
    ledger.apply(ev.Dispatched("one", worker_id("a"), 0.0))
    assert judged(ledger, 51)[0] == [KV_SHORT, NONE, NONE]
    # Where the engine does not tell, what our requests hold does.
    ledger.apply(ev.Admitted(Request("two", "m", 0.0, 850), 0.0))
    ledger.apply(ev.Dispatched("two", worker_id("b"), 0.0))
    assert judged(ledger, 51)[0] == [KV_SHORT, KV_SHORT, NONE]


def test_far_workers_are_excluded() -> None:
    ledger = fleet(Guards(topology_distance=1), *(spec(f"w{d}", topology_distance=d) for d in range(3)))
    assert judged(ledger) == ([NONE, NONE, TOO_FAR], False)


def test_a_guard_that_would_leave_nobody_is_lifted_alone() -> None:
    ledger = fleet(Guards(gpu_use=0.5, topology_distance=0), spec("a"), spec("b"), spec("far", topology_distance=1))
    for name in ("a", "b", "far"):
        ledger.apply(ev.GpuRead(worker_id(name), 0.0, 0.9))
    assert judged(ledger) == ([NONE, NONE, TOO_FAR], True)
    ledger.apply(ev.GpuRead(worker_id("b"), 0.0, 0.1))
    assert judged(ledger) == ([GPU_BUSY, NONE, TOO_FAR], False)
    # A request that must go to a busy worker still goes there.
    pinned = judged(ledger, pinned_worker=worker_id("a"))
    assert pinned == ([NONE, Exclusion.PINNED_ELSEWHERE, Exclusion.PINNED_ELSEWHERE], True)


def test_without_guards_nothing_is_excluded() -> None:
    ledger = fleet(Guards(), spec("a", kv_capacity_tokens=10), spec("b", topology_distance=9))
    ledger.apply(ev.GpuRead(worker_id("a"), 0.0, 1.0))
    assert judged(ledger, 1000) == ([NONE, NONE], False)


def test_a_cap_holds_even_when_nobody_is_left() -> None:
    ledger = fleet(Guards(), spec("a", max_in_flight=2), spec("b", max_in_flight=1))
    for number, name in enumerate(("a", "b")):
        ledger.apply(ev.Admitted(Request(f"r{number}", "m", 0.0, 1), 0.0))
        ledger.apply(ev.Dispatched(f"r{number}", worker_id(name), 0.0))
    assert judged(ledger)[0] == [NONE, Exclusion.AT_CAP]
    ledger.apply(ev.Admitted(Request("r2", "m", 0.0, 1), 0.0))
    ledger.apply(ev.Dispatched("r2", worker_id("a"), 0.0))
    assert judged(ledger) == ([Exclusion.AT_CAP, Exclusion.AT_CAP], False)
    # Requests of others do not count.
    ledger.apply(ev.Cancelled("r0", 0.0))
    ledger.apply(ev.MetricsRead(worker_id("a"), 0.0, 50, 0))
    assert judged(ledger)[0] == [NONE, Exclusion.AT_CAP]


def test_weights_caps_and_sizes_are_told_and_follow_changes() -> None:
    a = spec("a", weight=0.5, max_in_flight=7, max_batch_size=32, topology_distance=2)
    ledger = fleet(Guards(), a, spec("b"))
    columns = [Column.WEIGHT_PERMILLE, Column.CAP, Column.MAX_SEQUENCES, Column.TOPOLOGY_DISTANCE]
    view = ledger.view(Request("r", "m", 0.0, 1))
    np.testing.assert_array_equal(view.table[columns], [[500, 1000], [7, 0], [32, 0], [2, 0]])
    ledger.apply(ev.WorkerChanged(replace(a, weight=2.0), 1.0))
    assert ledger.view(Request("r", "m", 0.0, 1)).column(Column.WEIGHT_PERMILLE).tolist() == [2000, 1000]
