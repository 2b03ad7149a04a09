"""Runs of many steps bring what single steps do, and the ledger hears the same of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pointsman.app.simulate import worker as worker_module
from pointsman.app.simulate.run import simulate
from pointsman.app.simulate.setup import Setup, WorkerGroup
from pointsman.core.model.view import Column
from pointsman.core.policies.policy import rejection
from pointsman.core.policies.registry import PolicyRegistry
from pointsman.core.timing.profiles import profile
from pointsman.core.workload.trace import Trace, TraceRequest

LLAMA = profile("h100/llama-8b")
POLICY = PolicyRegistry().get("round_robin")


class TestRuns:
    @pytest.mark.parametrize(("policy", "noise"), [("round_robin", 0.0), ("kv", 0.0), ("kv", 0.3)])
    def test_of_many_steps_bring_the_same_as_single_steps(
        self, play, fleet, shared_prompts, monkeypatch, policy: str, noise: float
    ) -> None:
        trace = shared_prompts(150, every_ms=10.0, output_tokens=100)
        setup = fleet(2, max_num_seqs=6, step_noise=noise)
        outcomes = []
        for most_steps in (1, worker_module.MOST_STEPS):
            monkeypatch.setattr(worker_module, "MOST_STEPS", most_steps)
            outcomes.append(play(trace, setup, policy).outcome)
        for name in ("first_token_ms", "end_ms", "cached_tokens", "worker"):
            assert getattr(outcomes[1], name) == pytest.approx(getattr(outcomes[0], name))
        assert outcomes[1].itl.count == pytest.approx(outcomes[0].itl.count)
        for share in (0.1, 0.5, 0.99):
            assert outcomes[1].itl.quantile_ms(share) == pytest.approx(outcomes[0].itl.quantile_ms(share), rel=0.02)

    @pytest.mark.parametrize("delay_ms", [0.0, 5.0, 500.0])
    def test_the_ledger_hears_the_same_at_the_same_time(self, fleet, conversations, monkeypatch, delay_ms) -> None:
        """Small caches, so that decoding evicts; later turns find what answers filled."""
        trace = conversations(people=20, turns=5, gap_ms=150.0)
        small = replace(LLAMA, kv_tokens=2_400)
        seen: dict[int, list[list[int]]] = {}
        for most_steps in (1, worker_module.MOST_STEPS):
            monkeypatch.setattr(worker_module, "MOST_STEPS", most_steps)
            tables = seen.setdefault(most_steps, [])
            simulate(
                trace,
                Setup((WorkerGroup(small, 2),), kv_event_delay_ms=delay_ms, metrics_every_ms=40.0),
                PolicyRegistry().get("round_robin"),
                on_decision=lambda _, made, tables=tables: tables.append(made.view.table.tolist()),
            )
        assert seen[1] == seen[worker_module.MOST_STEPS]

    def test_what_a_run_fills_is_heard_of_after_the_delay(self, fleet) -> None:
        """An answer fills blocks all the time; others that begin with it look in."""
        blocks = tuple(range(100))
        asked = TraceRequest(0, 160, 1440, blocks[:10], blocks[10:])
        lookers = [TraceRequest(100.0 * n, 1600, 1, blocks) for n in range(1, 60)]
        cached: dict[float, list[int]] = {}
        for delay_ms in (0.0, 1000.0):
            found = cached.setdefault(delay_ms, [])

            class Watch(type(POLICY)):
                def decide(self, request, view, timing, now_ms, rng, found=found):
                    if request.id != "r0":
                        found.append(int(view.column(Column.CACHED_TOKENS)[0]))
                        return rejection(self.name, request, view, now_ms)
                    return super().decide(request, view, timing, now_ms, rng)

            simulate(Trace("t", [asked, *lookers], 16), fleet(1, kv_event_delay_ms=delay_ms), Watch())
        assert cached[0.0][0] < cached[0.0][3]
        assert cached[1000.0][:9] == [160] * 9  # what was sent is known at once
        assert cached[1000.0][10:] == cached[0.0][:-10]
