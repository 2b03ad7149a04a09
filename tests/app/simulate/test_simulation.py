"""A fleet in virtual time: what comes out, and that nothing is lost on the way."""

from __future__ import annotations

import gc
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.app.simulate import worker as worker_module
from pointsman.app.simulate.outcome import Status
from pointsman.app.simulate.run import simulate
from pointsman.app.simulate.setup import Drain, Failure, Setup, WorkerGroup
from pointsman.app.simulate.simulation import Simulation
from pointsman.core.engine_model.config import TierConfig
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.errors import ConfigError, PolicyError
from pointsman.core.model.view import Column
from pointsman.core.model.worker import Role
from pointsman.core.policies.chance import decision_chance
from pointsman.core.policies.policy import decision
from pointsman.core.policies.registry import PolicyRegistry
from pointsman.core.timing.profiles import profile
from pointsman.core.workload.trace import Trace, TraceRequest

LLAMA = profile("h100/llama-8b")
POLICY = PolicyRegistry().get("round_robin")


def assert_nothing_left(ledger: Ledger) -> None:
    """Every counter is zero when nothing is in flight."""
    assert ledger.in_flight == ledger.waiting == 0
    for worker in ledger.snapshot().workers:
        gauges = (worker.running, worker.sequences, worker.foreign, worker.prefill_tokens, worker.kv_tokens)
        assert gauges == (0, 0, 0, 0, 0)


class TestOneRequest:
    @pytest.mark.parametrize(("front_end_ms", "spent_ms"), [(None, 7.0), (0.0, 0.0), (2.0, 2.0)])
    def test_takes_the_overhead_of_its_profile_unless_another_is_given(
        self, play, front_end_ms: float | None, spent_ms: float
    ) -> None:
        groups = tuple(WorkerGroup(replace(LLAMA, overhead_ms=overhead_ms), 1) for overhead_ms in (3.0, 7.0))
        trace = Trace("one", [TraceRequest(100.0, 1000, 11)])
        outcome = play(trace, Setup(groups, front_end_ms=front_end_ms)).outcome
        assert outcome.ttft_ms[0] == pytest.approx(spent_ms + LLAMA.step.step_ms(0, 0, 1000, 1000**2))

    def test_takes_what_the_formula_says(self, play, fleet) -> None:
        trace = Trace("one", [TraceRequest(100.0, 1000, 11)])
        outcome = play(trace, fleet(1, front_end_ms=7.0)).outcome
        step = LLAMA.step
        prefill_ms = step.step_ms(0, 0, 1000, 1000**2)
        decode_ms = [step.step_ms(1, 1000 + number, 0) for number in range(1, 11)]
        assert outcome.arrival_ms.tolist() == [100.0]
        assert outcome.dispatched_ms.tolist() == [107.0]
        assert outcome.ttft_ms[0] == pytest.approx(7 + prefill_ms)
        assert outcome.e2e_ms[0] == pytest.approx(7 + prefill_ms + sum(decode_ms))
        assert outcome.tpot_ms[0] == pytest.approx(np.mean(decode_ms))
        assert outcome.itl.count == 10
        assert outcome.itl.mean_ms == pytest.approx(np.mean(decode_ms))
        assert outcome.output_tokens.tolist() == [11]
        (worker,) = outcome.workers
        assert worker.busy_ms == pytest.approx(prefill_ms + sum(decode_ms))
        assert worker.gpu_ms == pytest.approx(outcome.ended_ms - outcome.started_ms)
        assert (worker.requests, worker.prompt_tokens, worker.output_tokens) == (1, 1000, 11)

    def test_of_one_token_has_no_tpot(self, play, fleet) -> None:
        outcome = play(Trace("one", [TraceRequest(0, 100, 1)]), fleet(1)).outcome
        assert outcome.ttft_ms[0] == outcome.e2e_ms[0] > 0
        assert np.isnan(outcome.tpot_ms[0])

    def test_a_slow_worker_takes_so_many_times_longer(self, play, fleet) -> None:
        trace = Trace("one", [TraceRequest(0, 1000, 11)])
        setup = fleet(1)
        slow = replace(setup, groups=(replace(setup.groups[0], slow=1.5),))
        times = [play(trace, one).outcome.e2e_ms[0] for one in (setup, slow)]
        assert times[1] == pytest.approx(1.5 * times[0])

    def test_a_prompt_that_no_worker_can_hold_is_rejected(self, play, fleet) -> None:
        trace = Trace("two", [TraceRequest(0, 5000, 5), TraceRequest(1, 50, 5)])
        played = play(trace, fleet(2, max_context_tokens=4000))
        assert played.outcome.status.tolist() == [Status.REJECTED, Status.DONE]
        assert played.outcome.worker.tolist()[0] == -1
        assert np.isnan(played.outcome.e2e_ms[0])
        assert_nothing_left(played.ledger)


class TestPolicies:
    def test_affinity_finds_what_round_robin_computes_again(self, play, fleet, shared_prompts) -> None:
        trace = shared_prompts(groups=40, count=300)
        hits = {}
        for policy, events in (("round_robin", True), ("kv", True), ("prefix", False)):
            outcome = play(trace, fleet(8, kv_events=events), policy).outcome
            assert outcome.done.all()
            hits[policy] = outcome.cached_tokens.sum() / outcome.prompt_tokens.sum()
        assert hits["kv"] > hits["round_robin"] + 0.2
        assert hits["prefix"] > hits["round_robin"] + 0.2

    def test_without_kv_events_nothing_is_exact(self, fleet, shared_prompts) -> None:
        for events, expected in ((True, 1), (False, 0)):
            seen = set()
            simulate(
                shared_prompts(20),
                fleet(2, kv_events=events),
                PolicyRegistry().get("kv"),
                on_decision=lambda _, made, seen=seen: seen.update(made.view.column(Column.EXACT).tolist()),
            )
            assert seen == {expected}

    def test_cached_tokens_are_known_before_the_events_tell(self, fleet) -> None:
        """A burst of siblings: predicted when it is sent, by the ledger, not by the engine."""
        requests = [TraceRequest(0.001 * number, 640, 5, tuple(range(40))) for number in range(4)]
        seen: list[int] = []
        simulate(
            Trace("siblings", requests, 16),
            fleet(1, kv_event_delay_ms=50.0),
            PolicyRegistry().get("kv"),
            on_decision=lambda _, made: seen.append(int(made.view.column(Column.CACHED_TOKENS)[0])),
        )
        assert seen == [0, 624, 624, 624]  # the last token's block is always computed

    def test_sessions_stay_where_they_are(self, play, fleet, conversations) -> None:
        trace = conversations()
        outcome = play(trace, fleet(4), "session").outcome
        by_session: dict[str | None, set[int]] = {}
        for request, worker in zip(trace.requests, outcome.worker.tolist(), strict=True):
            by_session.setdefault(request.session, set()).add(worker)
        assert all(len(workers) == 1 for workers in by_session.values())
        later = np.array([request.after is not None for request in trace.requests])
        # All but the new question and the last block of each later turn was computed or generated there.
        assert (outcome.cached_tokens[later] >= outcome.prompt_tokens[later] - 3 * 16).all()

    def test_a_policy_that_chooses_an_excluded_worker_is_named(self, fleet, shared_prompts) -> None:
        class First:
            name = "first"

            def decide(self, request, view, timing, now_ms, rng):
                return decision(self.name, request, view, now_ms, 0, np.zeros(len(view)), "none")

        setup = fleet(2, drains=(Drain(0, 30.0),))
        with pytest.raises(
            PolicyError, match=r"policy first failed on request .*: it chose w0/0, which is excluded: draining"
        ):
            simulate(shared_prompts(20), setup, First())

    def test_a_policy_that_fails_is_named(self, fleet, shared_prompts) -> None:
        class Broken:
            name = "broken"

            def decide(self, request, view, timing, now_ms, rng):
                raise KeyError("kv")

        with pytest.raises(PolicyError, match=r"policy broken failed on request r0: KeyError"):
            simulate(shared_prompts(1), fleet(2), Broken())

    def test_policies_get_the_step_times(self, fleet, shared_prompts) -> None:
        seen = []

        class Asks:
            name = "asks"

            def decide(self, request, view, timing, now_ms, rng):
                seen.append({worker: timing[worker].step for worker in view.workers})
                return decision(self.name, request, view, now_ms, 0, np.zeros(len(view)), "none")

        simulate(shared_prompts(1), fleet(2), Asks())
        assert seen == [{"w0/0": LLAMA.step, "w1/0": LLAMA.step}]

    def test_step_times_are_learned_as_live(self, play, fleet, shared_prompts) -> None:
        """The second worker is slower than its profile says; what policies get at the end knows that."""
        first = fleet(1).groups[0]
        groups = (first, replace(first, slow=1.5))
        setup = replace(fleet(1, learn_times=True), groups=groups)
        played = play(shared_prompts(300), setup)
        times = [worker.times for worker in played.ledger.snapshot().workers]
        assert times[0] is not None
        assert times[1] is not None
        assert times[0].worker_class == first.profile.name
        assert times[1].factor / times[0].factor == pytest.approx(1.5, rel=0.1)
        assert played.ledger.timing["w1/0"].step == times[1].step


class TestTiers:
    def test_what_the_gpu_let_go_is_loaded_from_below(self, fleet, shared_prompts) -> None:
        trace = shared_prompts(300, groups=40)
        small = replace(LLAMA, kv_tokens=8_000)
        host = TierConfig("CPU", 4000, load_ms_per_block=0.05)
        hits, offloaded = [], []
        for tiers in ((), (host,)):
            setup = replace(fleet(2, tiers=tiers), groups=(WorkerGroup(small, 2),))
            outcome = simulate(
                trace,
                setup,
                PolicyRegistry().get("kv"),
                on_decision=lambda _, made: offloaded.append(int(made.view.column(Column.OFFLOADED_TOKENS).max())),
            )
            hits.append(outcome.cached_tokens.sum() / outcome.prompt_tokens.sum())
        assert hits[1] > hits[0] + 0.1
        assert max(offloaded[:300]) == 0
        assert max(offloaded[300:]) >= 600


class TestArrivals:
    def test_each_turn_waits_for_the_answer_before_it(self, play, fleet, conversations) -> None:
        trace = conversations(gap_ms=500.0)
        outcome = play(trace, fleet(2)).outcome
        for position, request in enumerate(trace.requests):
            if request.after is not None:
                assert outcome.arrival_ms[position] == outcome.end_ms[request.after] + 500.0

    def test_recorded_times(self, play, fleet, conversations) -> None:
        trace = conversations()
        outcome = play(trace, fleet(2, recorded_times=True)).outcome
        assert outcome.arrival_ms.tolist() == [request.at_ms for request in trace.requests]

    def test_so_many_clients_are_never_exceeded(self, play, fleet, shared_prompts) -> None:
        outcome = play(shared_prompts(60), fleet(2), clients=5).outcome
        assert outcome.done.all()
        moments = sorted([(at, 1) for at in outcome.arrival_ms] + [(at, -1) for at in outcome.end_ms])
        open_now = np.cumsum([change for _, change in moments])
        assert open_now.max() == 5
        assert outcome.started_ms == 0

    def test_a_trace_may_begin_at_any_time(self, play, fleet, shared_prompts) -> None:
        trace = shared_prompts(30)
        later = Trace("later", [replace(r, at_ms=r.at_ms + 1e9) for r in trace.requests], 16)
        outcomes = [play(one, fleet(2)).outcome for one in (trace, later)]
        assert outcomes[1].ttft_ms == pytest.approx(outcomes[0].ttft_ms, abs=1e-3)
        assert outcomes[1].workers[0].gpu_ms == pytest.approx(outcomes[0].workers[0].gpu_ms, abs=1e-3)

    def test_an_empty_trace_has_an_empty_outcome(self, play, fleet) -> None:
        outcome = play(Trace("empty", []), fleet(2)).outcome
        assert len(outcome) == 0
        assert outcome.ended_ms == outcome.started_ms


class TestFailures:
    def test_a_dead_worker_fails_what_it_had_and_gets_nothing_more(self, play, fleet, shared_prompts) -> None:
        trace = shared_prompts(200, every_ms=5.0)
        played = play(trace, fleet(3, failures=(Failure(1, 300.0),)), "round_robin")
        outcome = played.outcome
        failed = outcome.status == Status.FAILED
        assert failed.any()
        assert (outcome.worker[failed] == 1).all()
        assert (outcome.end_ms[failed] == 300.0).all()
        assert not ((outcome.dispatched_ms > 300.0) & (outcome.worker == 1)).any()
        assert outcome.done[~failed].all()
        assert outcome.workers[1].gpu_ms == pytest.approx(300.0 - outcome.started_ms)
        assert_nothing_left(played.ledger)

    def test_it_comes_back_after_its_start_with_an_empty_cache(self, play, fleet) -> None:
        prompt = {"prompt_tokens": 320, "output_tokens": 2, "block_ids": tuple(range(20))}
        requests = [TraceRequest(at_ms, **prompt) for at_ms in (0.0, 1000.0, 3000.0, 6000.0, 7000.0)]
        setup = fleet(1, failures=(Failure(0, 2000.0, back_after_ms=1500.0),), startup_ms=500.0)
        outcome = play(Trace("t", requests, 16), setup).outcome
        assert outcome.status.tolist() == [Status.DONE, Status.DONE, Status.REJECTED, Status.DONE, Status.DONE]
        assert outcome.cached_tokens.tolist() == [0, 304, 0, 0, 304]
        assert outcome.workers[0].gpu_ms == pytest.approx(2000.0 + outcome.ended_ms - 3500.0)

    def test_what_had_no_token_yet_is_tried_again_if_the_setup_says_so(self, play, fleet, shared_prompts) -> None:
        trace = shared_prompts(200, every_ms=5.0)
        setup = fleet(3, failures=(Failure(1, 300.0),), retries=1)
        played = play(trace, setup, "round_robin")
        outcome = played.outcome
        failed = outcome.status == Status.FAILED
        assert (~np.isnan(outcome.first_token_ms[failed])).all()
        assert failed.sum() < (play(trace, replace(setup, retries=0), "round_robin").outcome.status != 0).sum()
        assert_nothing_left(played.ledger)

    def test_all_workers_dead(self, play, fleet, shared_prompts) -> None:
        trace = shared_prompts(50)
        played = play(trace, fleet(2, failures=(Failure(0, 100.0), Failure(1, 100.0))))
        outcome = played.outcome
        assert set(outcome.status[outcome.arrival_ms > 100.0].tolist()) <= {Status.FAILED, Status.REJECTED}
        assert_nothing_left(played.ledger)

    def test_a_drained_worker_ends_what_it_has(self, play, fleet, shared_prompts) -> None:
        outcome = play(shared_prompts(100), fleet(2, drains=(Drain(0, 400.0),)), "round_robin").outcome
        assert outcome.done.all()
        assert (outcome.worker[outcome.arrival_ms > 400.0] == 1).all()
        assert (outcome.worker[outcome.arrival_ms < 400.0] == 0).any()

    def test_workers_that_are_started_later_join_later(self, play, fleet, shared_prompts) -> None:
        setup = replace(fleet(1), startup_ms=300.0)
        setup = replace(setup, groups=(*setup.groups, WorkerGroup(LLAMA, 1, started_ms=200.0)))
        outcome = play(shared_prompts(100), setup, "round_robin").outcome
        assert outcome.done.all()
        assert outcome.dispatched_ms[outcome.worker == 1].min() >= 500.0
        assert outcome.workers[1].gpu_ms == pytest.approx(outcome.ended_ms - 200.0)

    def test_a_drained_worker_stays_drained(self, play, fleet, shared_prompts) -> None:
        """Whether it was up then, or comes back later."""
        trace = shared_prompts(100, every_ms=10.0)
        groups = (WorkerGroup(LLAMA, 2), WorkerGroup(LLAMA, 1, started_ms=200.0))
        setup = Setup(groups, drains=(Drain(1, 100.0), Drain(2, 100.0)), failures=(Failure(1, 300.0, 10.0),))
        outcome = play(trace, setup, "round_robin").outcome
        assert (outcome.worker[outcome.dispatched_ms > 100.0] == 0).all()
        assert outcome.workers[2].requests == 0

    def test_a_worker_may_die_while_it_starts(self, play, fleet, shared_prompts) -> None:
        setup = fleet(2, startup_ms=300.0, failures=(Failure(1, 100.0, 50.0), Failure(1, 250.0, 150.0)))
        outcome = play(shared_prompts(100, every_ms=10.0), setup, "round_robin").outcome
        later = outcome.dispatched_ms[(outcome.worker == 1) & (outcome.dispatched_ms > 100.0)]
        assert later.min() >= 700.0
        gpu_ms = 100.0 - outcome.started_ms + 100.0 + outcome.ended_ms - 400.0
        assert outcome.workers[1].gpu_ms == pytest.approx(gpu_ms)

    def test_an_answer_that_broke_off_has_the_tokens_that_came(self, play, fleet) -> None:
        step = LLAMA.step
        first_ms = step.step_ms(0, 0, 100, 100**2)
        dies_ms = first_ms + sum(step.step_ms(1, 100 + number, 0) for number in range(1, 21)) + 1.0
        played = play(Trace("one", [TraceRequest(0, 100, 500)]), fleet(1, failures=(Failure(0, dies_ms),)))
        outcome = played.outcome
        assert outcome.status.tolist() == [Status.FAILED]
        assert outcome.output_tokens.tolist() == [21]
        assert outcome.itl.count == 20
        assert outcome.itl.total_ms == pytest.approx(dies_ms - 1.0 - first_ms)
        assert (outcome.workers[0].output_tokens, outcome.workers[0].prompt_tokens) == (21, 100)

    def test_a_queue_limit_rejects(self, play, fleet, shared_prompts) -> None:
        trace = shared_prompts(100, every_ms=0.5)
        setup = fleet(1, max_num_seqs=4, queue_limit=3, metrics_every_ms=0.0)
        played = play(trace, setup)
        rejected = played.outcome.status == Status.REJECTED
        assert rejected.any()
        assert played.outcome.done[~rejected].all()
        assert_nothing_left(played.ledger)


class TestDeterminism:
    def test_same_seed_same_bytes(self, play, fleet, shared_prompts) -> None:
        setup = fleet(3, step_noise=0.05)
        digests = [play(shared_prompts(), setup, "random", seed=seed).outcome.digest() for seed in (4, 4, 5)]
        assert digests[0] == digests[1] != digests[2]

    def test_nothing_of_it_stays_in_memory(self, fleet, shared_prompts) -> None:
        def alive() -> list[object]:
            return [one for one in gc.get_objects() if isinstance(one, (Ledger, worker_module.ModelledWorker))]

        gc.collect()
        gc.disable()
        try:
            others = alive()  # what earlier tests still hold
            simulate(shared_prompts(20), fleet(2), POLICY)
            assert [one for one in alive() if not any(one is other for other in others)] == []
        finally:
            gc.enable()

    def test_the_policys_seed_is_its_own(self, play, fleet, shared_prompts) -> None:
        setup = fleet(3, step_noise=0.05)
        outcomes = [play(shared_prompts(), setup, "random", policy_seed=seed).outcome for seed in (1, 2)]
        assert outcomes[0].worker.tolist() != outcomes[1].worker.tolist()

    @pytest.mark.parametrize("policy", ["kv", "round_robin"])
    def test_the_order_of_what_happens_at_once_hardly_matters(self, play, fleet, shared_prompts, policy) -> None:
        trace = shared_prompts(300, every_ms=4.0)
        # Arrivals on a coarse grid, so that many things do happen at once.
        trace = Trace("grid", [replace(r, at_ms=float(round(r.at_ms / 50) * 50)) for r in trace.requests], 16)
        setup = fleet(4, kv_event_delay_ms=0.0)
        speeds = []
        for fields in ({}, *({"shuffle_ties": True, "seed": seed} for seed in range(2))):
            outcome = play(trace, setup, policy, **fields).outcome
            speeds.append(outcome.output_tokens.sum() / (outcome.ended_ms - outcome.started_ms))
        assert len({*speeds}) > 1
        assert max(speeds) / min(speeds) < 1.01

    @pytest.mark.parametrize("every_ms", [40, 3000])
    def test_noise_keeps_the_mean(self, play, fleet, every_ms: int) -> None:
        """However often something comes in between."""
        others = [TraceRequest(every_ms * number, 1, 1) for number in range(1, 15_000 // every_ms)]
        trace = Trace("t", [TraceRequest(0, 100, 3000), *others])
        times = [play(trace, fleet(1, step_noise=noise)).outcome.e2e_ms[0] for noise in (0.0, 0.3)]
        assert times[0] != times[1]
        assert times[1] == pytest.approx(times[0], rel=0.015)

    def test_noise_is_of_each_step(self, play, fleet) -> None:
        outcome = play(Trace("t", [TraceRequest(0, 100, 3000)]), fleet(1, step_noise=0.3)).outcome
        lengths = outcome.itl
        assert lengths.quantile_ms(0.9) / lengths.quantile_ms(0.1) == pytest.approx(
            math.exp(2 * 1.2816 * 0.3), rel=0.06
        )

    @pytest.mark.parametrize("policy", ["kv", "power_of_two", "random", "session"])
    def test_a_recorded_view_decides_the_same_again(self, fleet, shared_prompts, policy) -> None:
        recorded = []
        again = PolicyRegistry().get(policy)
        simulate(
            shared_prompts(100),
            fleet(4),
            PolicyRegistry().get(policy),
            seed=3,
            on_decision=lambda request, made: recorded.append((request, made)),
        )
        assert len(recorded) == 100
        for request, made in recorded:
            second = again.decide(request, made.view, {}, made.at_ms, decision_chance(3, request.id))
            assert second.worker == made.worker
            assert second.scores.tolist() == made.scores.tolist()


class TestMetrics:
    def test_fresh_ones_show_the_engines_load_at_each_decision(self, fleet, shared_prompts) -> None:
        used: dict[float, list[int]] = {}
        for every_ms in (0.0, 1e6):
            seen = used.setdefault(every_ms, [])
            simulate(
                shared_prompts(100, every_ms=5.0),
                fleet(1, metrics_every_ms=every_ms),
                PolicyRegistry().get("least_loaded"),
                on_decision=lambda _, made, seen=seen: seen.append(int(made.view.column(Column.KV_USED_TOKENS)[0])),
            )
        assert max(used[0.0]) > 10_000
        assert max(used[1e6]) == 0

    def test_the_ledger_hears_of_tokens_as_they_come(self, fleet) -> None:
        """One answer of 1000 tokens; a short request looks in now and then."""
        requests = [TraceRequest(0, 160, 1000), *(TraceRequest(500.0 * n, 16, 1) for n in range(1, 12))]
        seen = []
        outcome = simulate(
            Trace("t", requests),
            fleet(1),
            PolicyRegistry().get("least_loaded"),
            on_decision=lambda _, made: seen.append((made.at_ms, int(made.view.column(Column.KV_TOKENS)[0]))),
        )
        step_ms = outcome.tpot_ms[0]
        for at_ms, held in seen[1:]:
            generated = (at_ms - outcome.first_token_ms[0]) / step_ms
            assert generated - 35 <= held - 160 <= generated + 3

    def test_progress_is_called_now_and_then(self, fleet, shared_prompts) -> None:
        calls: list[tuple[int, int]] = []
        trace = shared_prompts(1000, every_ms=1.0, output_tokens=2)
        simulate(trace, fleet(4), PolicyRegistry().get("round_robin"), on_progress=lambda *done: calls.append(done))
        assert 100 <= len(calls) <= 201
        assert calls == sorted(calls)
        assert calls[-1] == (1000, 1000)


class TestSetup:
    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"groups": ()}, "at least one worker"),
            ({"groups": (WorkerGroup(LLAMA, 0),)}, "at least one worker"),
            ({"groups": (WorkerGroup(LLAMA, 1, Role.PREFILL),)}, "workers for prefill need others that decode"),
            ({"groups": (WorkerGroup(LLAMA, 1, slow=0.0),)}, "slow must be above 0"),
            ({"max_num_seqs": 512, "max_batched_tokens": 256}, r"max_batched_tokens \(256\) must be at least"),
            ({"max_num_seqs": 0}, "max_num_seqs must be at least 1"),
            ({"front_end_ms": -1.0}, "front_end_ms must be 0 or more"),
            ({"step_noise": float("nan")}, "step_noise must be 0 or more"),
            ({"front_end_ms": math.inf}, "front_end_ms must be 0 or more, not inf"),
            ({"failures": (Failure(0, math.nan),)}, "at_ms of a failure must be 0 or more, not nan"),
            ({"failures": (Failure(0, 1.0, -1.0),)}, "back_after_ms of a failure must be 0 or more, not -1.0"),
            ({"drains": (Drain(0, math.nan),)}, "at_ms of a drain must be 0 or more, not nan"),
            ({"failures": (Failure(3, 1.0),)}, "there is no worker 3: the 1 workers"),
        ],
    )
    def test_what_can_not_be_is_named(self, fields: dict[str, object], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            simulate(
                Trace("t", [TraceRequest(0, 1, 1)]), Setup(**{"groups": (WorkerGroup(LLAMA, 1),), **fields}), POLICY
            )  # type: ignore[arg-type]

    def test_models_have_workers_of_their_own(self, play) -> None:
        groups = (WorkerGroup(LLAMA, 1, models=("a",)), WorkerGroup(LLAMA, 1, models=("a", "b")))
        requests = [TraceRequest(float(n), 50, 5, model=("a", "b", "c")[n % 3]) for n in range(30)]
        outcome = play(Trace("models", requests), Setup(groups), "random").outcome
        assert set(outcome.worker[0::3].tolist()) == {0, 1}
        assert set(outcome.worker[1::3].tolist()) == {1}
        assert set(outcome.status[2::3].tolist()) == {Status.REJECTED}


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_every_request_ends_once_whatever_happens(data: st.DataObject) -> None:
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    count = data.draw(st.integers(1, 40))
    requests: list[TraceRequest] = []
    at_ms = 0.0
    for position in range(count):
        at_ms += rng.choice((0.0, rng.expovariate(0.05)))
        tokens = rng.randrange(1, 2000)
        group = rng.randrange(3)
        blocks = tuple(group * 1000 + block for block in range(-(-tokens // 64)))
        after = rng.choice((None, rng.randrange(position))) if position else None
        requests.append(
            TraceRequest(at_ms, tokens, rng.randrange(1, 200), blocks, after=after, gap_ms=rng.random() * 50)
        )
    workers = data.draw(st.integers(1, 4))
    small = replace(profile("h100/llama-8b"), kv_tokens=data.draw(st.sampled_from([2304, 4096, 100_000])))
    setup = Setup(
        groups=(WorkerGroup(small, workers),),
        block_tokens=data.draw(st.sampled_from([None, 16, 128])),
        max_num_seqs=data.draw(st.sampled_from([1, 3, 64])),
        max_batched_tokens=data.draw(st.sampled_from([128, 8192])),
        kv_events=data.draw(st.booleans()),
        kv_event_delay_ms=data.draw(st.sampled_from([0.0, 5.0])),
        metrics_every_ms=data.draw(st.sampled_from([0.0, 100.0])),
        failures=tuple(
            Failure(rng.randrange(workers), rng.random() * 1000, data.draw(st.sampled_from([None, 0.0, 200.0])))
            for _ in range(data.draw(st.integers(0, 2)))
        ),
        queue_limit=data.draw(st.sampled_from([None, 2])),
        retries=data.draw(st.integers(0, 2)),
        step_noise=data.draw(st.sampled_from([0.0, 0.1])),
    )
    policy = PolicyRegistry().get(data.draw(st.sampled_from(["kv", "prefix", "round_robin", "power_of_two"])))
    simulation = Simulation(
        Trace("any", requests, 64),
        setup,
        policy,
        seed=1,
        shuffle_ties=data.draw(st.booleans()),
        clients=data.draw(st.sampled_from([None, 1, 4])),
    )
    outcome = simulation.run()
    assert_nothing_left(simulation.ledger)
    done = outcome.done
    assert (outcome.status >= 0).all()
    assert (outcome.end_ms >= outcome.arrival_ms).all()
    assert (outcome.first_token_ms[done] >= outcome.dispatched_ms[done]).all()
    assert (outcome.end_ms[done] >= outcome.first_token_ms[done]).all()
    asked = np.array([request.output_tokens for request in requests])
    prompts = np.array([request.prompt_tokens for request in requests])
    most = small.num_blocks(simulation.block_tokens) * simulation.block_tokens
    assert (outcome.output_tokens[done] == np.minimum(asked, most - prompts)[done]).all()
    assert (outcome.cached_tokens < outcome.prompt_tokens).all()
    assert sum(worker.output_tokens for worker in outcome.workers) == outcome.output_tokens.sum()
    # One interval a token after the first.
    assert outcome.itl.count == pytest.approx(np.maximum(outcome.output_tokens - 1, 0).sum())
    assert ((outcome.output_tokens > 0) == ~np.isnan(outcome.first_token_ms)).all()
