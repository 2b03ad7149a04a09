"""Fleets in which some compute prompts and others decode."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.app.simulate.outcome import Status
from pointsman.app.simulate.run import simulate
from pointsman.app.simulate.setup import Drain, Failure, Setup, WorkerGroup
from pointsman.app.simulate.simulation import Simulation
from pointsman.core.model.worker import Role
from pointsman.core.policies.least_loaded import LeastLoaded
from pointsman.core.policies.policy import rejection
from pointsman.core.policies.registry import PolicyRegistry
from pointsman.core.timing.links import Link, network_link
from pointsman.core.timing.profiles import profile
from pointsman.core.workload.trace import Trace, TraceRequest

LLAMA = profile("h100/llama-8b")
LINK = Link("test", 10.0, floor_ms=2.0)


def split(prefill: int = 1, decode: int = 1, both: int = 0, **fields: object) -> Setup:
    counts = {Role.PREFILL: prefill, Role.DECODE: decode, Role.BOTH: both}
    groups = tuple(WorkerGroup(LLAMA, count, role) for role, count in counts.items() if count)
    return Setup(groups, **{"link": LINK, **fields})  # type: ignore[arg-type]


def assert_nothing_left(simulation: Simulation) -> None:
    ledger = simulation.ledger
    assert ledger.in_flight == ledger.waiting == 0
    for worker in ledger.snapshot().workers:
        assert (worker.running, worker.sequences, worker.prefill_tokens, worker.kv_tokens) == (0, 0, 0, 0)


class TestOneRequest:
    def test_takes_what_the_formulas_say(self, play) -> None:
        outcome = play(Trace("one", [TraceRequest(0, 1600, 11)], 16), split()).outcome
        step = LLAMA.step
        prefill_ms = step.step_ms(0, 0, 1600, 1600**2)
        transfer_ms = LINK.transfer_ms(1600 * LLAMA.kv_bytes_per_token)
        decode_ms = [step.step_ms(1, 1600 + number, 0) for number in range(1, 11)]
        assert outcome.ttft_ms[0] == pytest.approx(prefill_ms)
        assert outcome.kv_arrived_ms[0] == pytest.approx(prefill_ms + transfer_ms)
        assert outcome.e2e_ms[0] == pytest.approx(prefill_ms + transfer_ms + sum(decode_ms))
        assert (outcome.prefill_worker[0], outcome.worker[0]) == (0, 1)
        assert outcome.output_tokens.tolist() == [11]
        assert [worker.output_tokens for worker in outcome.workers] == [1, 10]
        assert [worker.prompt_tokens for worker in outcome.workers] == [1600, 0]
        assert outcome.itl.count == pytest.approx(10)
        assert outcome.itl.total_ms == pytest.approx(outcome.e2e_ms[0] - outcome.ttft_ms[0])
        assert outcome.itl.quantile_ms(0.99) == pytest.approx(transfer_ms + decode_ms[0], rel=0.02)

    def test_of_one_token_is_not_split(self, play) -> None:
        outcome = play(Trace("one", [TraceRequest(0, 1600, 1)], 16), split()).outcome
        assert outcome.status.tolist() == [Status.DONE]
        assert (outcome.prefill_worker[0], outcome.worker[0]) == (-1, 0)
        assert np.isnan(outcome.kv_arrived_ms[0])

    def test_what_the_decoder_holds_need_not_be_moved(self, play) -> None:
        asked = {"prompt_tokens": 1600, "output_tokens": 5, "block_ids": tuple(range(100))}
        outcome = play(Trace("two", [TraceRequest(at_ms, **asked) for at_ms in (0.0, 1e4)], 16), split()).outcome
        moved_ms = outcome.kv_arrived_ms - outcome.first_token_ms
        assert moved_ms[0] == pytest.approx(LINK.transfer_ms(1600 * LLAMA.kv_bytes_per_token))
        assert moved_ms[1] == pytest.approx(LINK.transfer_ms(16 * LLAMA.kv_bytes_per_token))

    def test_transfers_share_the_link(self, play) -> None:
        setup = split(prefill=2)
        requests = [TraceRequest(0.0, 1600, 5) for _ in range(2)]
        outcome = play(Trace("two", requests, 16), setup, "round_robin").outcome
        size_bytes = 1600 * LLAMA.kv_bytes_per_token
        moved_ms = outcome.kv_arrived_ms - outcome.first_token_ms
        assert moved_ms == pytest.approx(2 * LINK.transfer_ms(size_bytes) - LINK.floor_ms)

    def test_without_a_link_the_network_of_the_gpus_is_used(self, play) -> None:
        outcome = play(Trace("one", [TraceRequest(0, 1600, 5)], 16), split(link=None)).outcome
        moved_ms = outcome.kv_arrived_ms - outcome.first_token_ms
        assert moved_ms[0] == pytest.approx(network_link(LLAMA.gpu).transfer_ms(1600 * LLAMA.kv_bytes_per_token))


class TestRoles:
    def test_everybody_does_what_it_is_for(self, play, shared_prompts) -> None:
        outcome = play(shared_prompts(200), split(2, 2), "kv").outcome
        assert outcome.done.all()
        several = outcome.output_tokens > 1
        assert set(outcome.prefill_worker[several].tolist()) == {0, 1}
        assert set(outcome.worker[several].tolist()) == {2, 3}
        assert outcome.itl.count == pytest.approx((outcome.output_tokens - 1).sum())
        assert (outcome.kv_arrived_ms[several] >= outcome.first_token_ms[several]).all()

    def test_workers_for_both_compute_whole_requests(self, play, shared_prompts) -> None:
        outcome = play(shared_prompts(200), split(1, 1, both=1), "round_robin").outcome
        assert outcome.done.all()
        whole = outcome.prefill_worker < 0
        several = outcome.output_tokens > 1
        assert set(outcome.worker[whole & several].tolist()) == {2}
        assert set(outcome.worker[~whole].tolist()) == {1, 2}

    def test_decode_workers_alone_compute_whole_requests(self, play, shared_prompts) -> None:
        outcome = play(shared_prompts(50), split(0, 2)).outcome
        assert outcome.done.all()
        assert (outcome.prefill_worker == -1).all()

    def test_answers_break_off_where_nobody_can_go_on(self, play, shared_prompts) -> None:
        outcome = play(shared_prompts(50), split(1, 1, drains=(Drain(1, 0.0),))).outcome
        failed = outcome.status == Status.FAILED
        assert failed.any()
        # Their first token came, and then nobody was there to go on.
        assert (outcome.output_tokens[failed] == 1).all()
        assert outcome.done[~failed].all()

    def test_a_policy_that_declines_leaves_the_decode_to_the_least_loaded(self, shared_prompts) -> None:
        class OnlyPrefill(LeastLoaded):
            name = "only_prefill"

            def decide(self, request, view, timing, now_ms, rng):
                if request.id.endswith("decode"):
                    return rejection(self.name, request, view, now_ms)
                made = super().decide(request, view, timing, now_ms, rng)
                return replace(made, policy=self.name)

        by = set()
        outcome = simulate(
            shared_prompts(50),
            split(1, 2),
            OnlyPrefill(),
            on_decision=lambda request, made: by.add((made.policy, request.id.endswith("decode"))),
        )
        assert outcome.done.all()
        assert by == {("only_prefill", False), ("least_loaded", True)}


class TestFailures:
    @pytest.mark.parametrize("worker", [0, 2])
    def test_a_dead_worker_fails_what_passes_through_it(self, play, shared_prompts, worker: int) -> None:
        trace = shared_prompts(300, every_ms=4.0)
        setup = split(2, 2, failures=(Failure(worker, 400.0),), link=Link("slow", 1.0))
        played = play(trace, setup, "round_robin")
        outcome = played.outcome
        failed = outcome.status == Status.FAILED
        assert failed.any()
        assert outcome.done[~failed].all()
        assert (outcome.end_ms[failed] == 400.0).all()
        mine = (
            outcome.worker
            if worker == 2
            else np.where(outcome.prefill_worker >= 0, outcome.prefill_worker, outcome.worker)
        )
        assert (mine[failed] == worker).all()
        assert played.ledger.in_flight == 0

    def test_kv_that_nobody_waits_for_is_let_go(self, play, shared_prompts) -> None:
        """The decoder dies again and again; the KV of what it had must not stay at the other one."""
        small = replace(LLAMA, kv_tokens=16_000)
        groups = (WorkerGroup(small, 1, Role.PREFILL), WorkerGroup(LLAMA, 1, Role.DECODE))
        failures = tuple(Failure(1, 200.0 * n, back_after_ms=1.0) for n in range(1, 10))
        setup = Setup(groups, failures=failures, link=Link("slow", 0.5))
        outcome = play(shared_prompts(300, every_ms=10.0), setup).outcome
        assert (outcome.status == Status.FAILED).sum() > 10
        later = outcome.arrival_ms > 1900
        assert outcome.done[later].any()


def test_same_seed_same_bytes(play, shared_prompts) -> None:
    digests = {play(shared_prompts(), split(2, 2), "random", seed=seed).outcome.digest() for seed in (4, 4, 5)}
    assert len(digests) == 2


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_every_request_ends_once_whatever_happens(data: st.DataObject) -> None:
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    requests: list[TraceRequest] = []
    at_ms = 0.0
    for _ in range(data.draw(st.integers(1, 40))):
        at_ms += rng.choice((0.0, rng.expovariate(0.05)))
        tokens = rng.randrange(1, 1500)
        group = rng.randrange(3)
        blocks = tuple(group * 1000 + block for block in range(-(-tokens // 64)))
        requests.append(TraceRequest(at_ms, tokens, rng.randrange(1, 100), blocks))
    prefill, decode, both = (data.draw(st.integers(low, 2)) for low in (1, 1, 0))
    small = replace(LLAMA, kv_tokens=data.draw(st.sampled_from([2048, 4096, 100_000])))
    counts = ((Role.PREFILL, prefill), (Role.DECODE, decode), (Role.BOTH, both))
    workers = prefill + decode + both
    setup = Setup(
        tuple(WorkerGroup(small, count, role) for role, count in counts if count),
        max_num_seqs=data.draw(st.sampled_from([1, 3, 64])),
        link=Link("any", data.draw(st.sampled_from([0.1, 50.0])), data.draw(st.sampled_from([0.0, 3.0]))),
        kv_events=data.draw(st.booleans()),
        failures=tuple(
            Failure(rng.randrange(workers), rng.random() * 1000, data.draw(st.sampled_from([None, 0.0, 200.0])))
            for _ in range(data.draw(st.integers(0, 2)))
        ),
        retries=data.draw(st.integers(0, 1)),
    )
    policy = PolicyRegistry().get(data.draw(st.sampled_from(["kv", "round_robin", "power_of_two"])))
    shuffle = data.draw(st.booleans())
    simulation = Simulation(Trace("any", requests, 64), setup, policy, shuffle_ties=shuffle)
    outcome = simulation.run()
    assert_nothing_left(simulation)
    done = outcome.done
    assert (outcome.status >= 0).all()
    moved = ~np.isnan(outcome.kv_arrived_ms)
    assert (outcome.kv_arrived_ms >= outcome.first_token_ms)[moved].all()
    assert (outcome.end_ms[done] >= outcome.first_token_ms[done]).all()
    assert done.all() or setup.failures
    assert sum(worker.output_tokens for worker in outcome.workers) == outcome.output_tokens.sum()
    assert outcome.itl.count == pytest.approx(np.maximum(outcome.output_tokens - 1, 0).sum())
    assert (outcome.itl.weights >= 0).all()
    if done.all():
        assert outcome.itl.total_ms == pytest.approx((outcome.end_ms - outcome.first_token_ms).sum())
