"""The simulator tells policies what the live front end tells them: promises, weights, caps, guards, busy GPUs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pointsman.app.simulate.run import simulate
from pointsman.app.simulate.setup import Setup, Slowdown, WorkerGroup
from pointsman.core.model.errors import ConfigError
from pointsman.core.model.guards import Guards
from pointsman.core.model.slo import Slo
from pointsman.core.model.view import Column, Exclusion
from pointsman.core.policies.registry import PolicyRegistry
from pointsman.core.timing.profiles import profile

H100 = profile("h100/llama-8b")


def decided(trace, setup: Setup, policy: str = "least_loaded"):
    seen = []
    outcome = simulate(trace, setup, PolicyRegistry().get(policy), on_decision=lambda r, d: seen.append((r, d)))
    return outcome, seen


def test_promises_are_those_of_all_or_of_the_tenant(shared_prompts, fleet) -> None:
    trace = shared_prompts(40)
    requests = [replace(r, tenant="rich" if i % 2 else None) for i, r in enumerate(trace.requests)]
    slo, better = Slo(1000.0, 50.0), Slo(100.0)
    _, seen = decided(replace(trace, requests=requests), fleet(2, slo=slo, slo_of_tenants={"rich": better}))
    assert {(request.tenant, request.slo) for request, _ in seen} == {(None, slo), ("rich", better)}
    assert max(d.view.column(Column.SLO_WAITING).max() for _, d in seen) > 0
    assert max(d.view.column(Column.SLO_DECODING).max() for _, d in seen) > 0


def test_the_ledger_is_at_rest_after_all(shared_prompts, fleet, play) -> None:
    ledger = play(shared_prompts(100), fleet(2, slo=Slo(1000.0, 50.0))).ledger
    cells = ledger._fleet.table.cells
    kept = [Column.WAITING_FIRST, Column.REMAINING_TOKENS, Column.SLO_WAITING, Column.SLO_DUE_MS]
    assert not np.any(cells[[*kept, Column.SLO_DECODING, Column.SLO_TPOT_US, Column.RUNNING]])


def test_lengths_are_learned(shared_prompts, fleet) -> None:
    _, seen = decided(shared_prompts(600, output_tokens=40), fleet(2))
    first, last = seen[0][1].view.outlook, seen[-1][1].view.outlook
    assert first.answers_seen == 0
    assert last.answers_seen > 300
    assert last.output_tokens == pytest.approx(40, rel=0.2)


def test_weights_and_caps(shared_prompts) -> None:
    groups = (WorkerGroup(H100, 1, weight=2.0, max_in_flight=1), WorkerGroup(H100, 1, topology_distance=3))
    _, seen = decided(shared_prompts(100, every_ms=5.0), Setup(groups))
    columns = [Column.WEIGHT_PERMILLE, Column.CAP, Column.TOPOLOGY_DISTANCE]
    assert seen[0][1].view.table[columns].tolist() == [[2000, 1000], [1, 0], [0, 3]]
    running = [int(d.view.column(Column.RUNNING)[0]) for _, d in seen]
    assert max(running) == 1
    full = [d for _, d in seen if d.view.column(Column.EXCLUSION)[0] == Exclusion.AT_CAP]
    assert full
    assert all(d.worker == "w1/0" for d in full)


def test_busy_engines_are_seen_and_guarded_against(shared_prompts, fleet) -> None:
    trace = shared_prompts(300, every_ms=15.0, groups=1)
    _, seen = decided(trace, fleet(2, metrics_every_ms=100.0))
    use = [d.view.column(Column.GPU_USE_PERMILLE) for _, d in seen]
    assert use[0].tolist() == [0, 0]
    assert max(u.max() for u in use) > 800
    _, seen = decided(trace, fleet(2, metrics_every_ms=100.0, guards=Guards(gpu_use=0.5)))
    assert any(Exclusion.GPU_BUSY in d.view.column(Column.EXCLUSION) for _, d in seen)
    assert any(d.view.guards_lifted for _, d in seen)


def test_a_worker_turns_slow_and_recovers(shared_prompts, fleet) -> None:
    trace = shared_prompts(400, every_ms=20.0)
    usual, _ = decided(trace, fleet(2), "round_robin")
    slowdowns = (Slowdown(0, 2_000.0, 3.0), Slowdown(0, 5_000.0, 1.0))
    slowed, _ = decided(trace, fleet(2, slowdowns=slowdowns), "round_robin")
    ratio = slowed.tpot_ms / usual.tpot_ms
    arrival, first = slowed.arrival_ms, slowed.worker == 0
    between = first & (arrival > 2_100) & (slowed.end_ms < 4_900)
    assert np.nanmedian(ratio[between]) > 2
    assert np.nanmedian(ratio[first & (slowed.end_ms < 2_000)]) == 1
    assert np.nanmedian(ratio[first & (arrival > 7_000)]) == pytest.approx(1, abs=0.2)
    assert np.nanmedian(ratio[~first & (arrival > 2_100)]) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"slowdowns": (Slowdown(9, 0.0, 2.0),)}, "there is no worker 9"),
        ({"slowdowns": (Slowdown(0, -1.0, 2.0),)}, "at_ms of a slowdown must be 0 or more"),
        ({"slowdowns": (Slowdown(0, 0.0, 0.0),)}, "the factor of a slowdown must be above 0"),
        ({"groups": (WorkerGroup(H100, 1, weight=0.0),)}, "weight must be above 0"),
        ({"groups": (WorkerGroup(H100, 1, max_in_flight=0),)}, "max_in_flight must be at least 1"),
    ],
)
def test_what_can_not_be(change, words) -> None:
    with pytest.raises(ConfigError, match=words):
        Setup(**({"groups": (WorkerGroup(H100, 2),)} | change))
