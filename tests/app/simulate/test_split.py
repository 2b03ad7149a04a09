"""Fleets in which some compute prompts and others decode, and KV moves between them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.app.simulate.outcome import Outcome, Status
from pointsman.app.simulate.setup import Drain, Failure, RoleChange, Setup, WorkerGroup
from pointsman.app.simulate.simulation import Simulation
from pointsman.core.ledger import events as ev
from pointsman.core.model.decision import Decision
from pointsman.core.model.plan import Aggregate, Disaggregate, Plan, Pull
from pointsman.core.model.transfer import TransferMode
from pointsman.core.model.worker import Role, worker_id
from pointsman.core.policies.registry import PolicyRegistry
from pointsman.core.timing.links import Link, network_link
from pointsman.core.timing.profiles import profile
from pointsman.core.workload.trace import Trace, TraceRequest

LLAMA = profile("h100/llama-8b")
LINK = Link("test", 10.0, floor_ms=2.0)
STEP = LLAMA.step
W = [worker_id(f"w{number}") for number in range(4)]


def split(prefill: int = 1, decode: int = 1, both: int = 0, **fields: object) -> Setup:
    counts = {Role.PREFILL: prefill, Role.DECODE: decode, Role.BOTH: both}
    groups = tuple(WorkerGroup(LLAMA, count, role) for role, count in counts.items() if count)
    return Setup(groups, **{"link": LINK, "kv_transfer": TransferMode.ALWAYS, **fields})  # type: ignore[arg-type]


def moved_ms(tokens: int, link: Link = LINK) -> float:
    return link.transfer_ms(tokens * LLAMA.kv_bytes_per_token)


@dataclass
class Scripted:
    """Decides these plans in turn, the last one ever again."""

    plans: list[Plan]
    name: str = "scripted"
    makes_plans: bool = True
    asked: int = field(default=0)

    def decide(self, request: Any, view: Any, timing: Any, now_ms: float, rng: random.Random) -> Decision:
        plan = self.plans[min(self.asked, len(self.plans) - 1)]
        self.asked += 1
        return Decision(request.id, self.name, now_ms, plan, view, "rank", np.zeros(len(view)))


@dataclass
class Run:
    """A simulation that ended, and what its ledger heard of requests."""

    simulation: Simulation
    outcome: Outcome
    told: list[ev.Event]

    def of(self, *kinds: type) -> list[tuple[str, float]]:
        return [(type(event).__name__, event.at_ms) for event in self.told if isinstance(event, kinds)]


def scripted(requests: list[TraceRequest], setup: Setup, *plans: Plan, **fields: Any) -> Run:
    """With blocks of 16 tokens."""
    simulation = Simulation(Trace("some", requests, 16), setup, Scripted(list(plans)), **fields)
    told: list[ev.Event] = []
    apply = simulation.ledger.apply

    def heard(event: ev.Event) -> None:
        told.append(event)
        apply(event)

    simulation.ledger.apply = heard  # type: ignore[method-assign]
    outcome = simulation.run()
    assert_nothing_left(simulation)
    return Run(simulation, outcome, told)


def assert_nothing_left(simulation: Simulation) -> None:
    ledger: Any = simulation.ledger
    assert ledger.in_flight == ledger.waiting == 0
    for worker in ledger.snapshot().workers:
        assert (worker.running, worker.sequences, worker.prefill_tokens, worker.kv_tokens) == (0, 0, 0, 0)
    for modelled in simulation._workers:
        assert not modelled.flights
        assert not modelled.legs
        assert modelled.engine.held == 0
        assert modelled.engine.kv_use == 0
    assert len(simulation._network) == 0


APART = Disaggregate(W[0], W[1])
ONE = TraceRequest(0, 1600, 11)
LEGS = (ev.Dispatched, ev.PrefillEnded, ev.PrefillFailed, ev.TransferEnded, ev.FirstToken, ev.AttemptFailed)


class TestOneRequest:
    def test_takes_what_the_formulas_say(self) -> None:
        run = scripted([ONE], split(), APART)
        outcome = run.outcome
        prefill_ms = STEP.step_ms(0, 0, 1600, 1600**2)
        last_ms = STEP.step_ms(0, 0, 1, 1600**2 - 1599**2)
        decode_ms = [STEP.step_ms(1, 1600 + number, 0) for number in range(1, 11)]
        assert outcome.prefilled_ms[0] == pytest.approx(prefill_ms)
        assert outcome.kv_arrived_ms[0] == pytest.approx(prefill_ms + moved_ms(1600))
        assert outcome.ttft_ms[0] == pytest.approx(prefill_ms + moved_ms(1600) + last_ms)
        assert outcome.e2e_ms[0] == pytest.approx(outcome.ttft_ms[0] + sum(decode_ms))
        assert (outcome.prefill_worker[0], outcome.worker[0]) == (0, 1)
        assert outcome.output_tokens.tolist() == [11]
        assert outcome.moved_tokens.tolist() == [1600]
        assert [worker.output_tokens for worker in outcome.workers] == [0, 11]
        assert [worker.prompt_tokens for worker in outcome.workers] == [1600, 0]
        assert outcome.itl.count == pytest.approx(10)
        assert outcome.itl.total_ms == pytest.approx(outcome.e2e_ms[0] - outcome.ttft_ms[0])

    def test_is_told_of_as_the_front_end_tells(self) -> None:
        run = scripted([ONE], split(), APART)
        prefill_ms = STEP.step_ms(0, 0, 1600, 1600**2)
        arrived_ms = prefill_ms + moved_ms(1600)
        assert run.of(*LEGS) == [
            ("Dispatched", 0.0),
            ("PrefillEnded", pytest.approx(prefill_ms)),
            ("TransferEnded", pytest.approx(arrived_ms)),
            ("FirstToken", pytest.approx(run.outcome.ttft_ms[0])),
        ]
        (dispatched,) = [event for event in run.told if isinstance(event, ev.Dispatched)]
        assert (dispatched.worker, dispatched.prefill) == (W[1], ev.PrefillLeg(W[0], 0, exact=True))
        (ended,) = [event for event in run.told if isinstance(event, ev.TransferEnded)]
        assert (ended.tokens, ended.size_bytes) == (1600, 1600 * LLAMA.kv_bytes_per_token)
        assert ended.took_ms == pytest.approx(moved_ms(1600))

    def test_of_one_token_is_answered_by_the_one_that_decodes(self) -> None:
        outcome = scripted([TraceRequest(0, 1600, 1)], split(), APART).outcome
        assert outcome.status.tolist() == [Status.DONE]
        assert (outcome.prefill_worker[0], outcome.worker[0]) == (0, 1)
        assert outcome.end_ms[0] == outcome.first_token_ms[0] > outcome.kv_arrived_ms[0]

    def test_what_the_decoder_holds_need_not_be_moved(self) -> None:
        asked: dict[str, Any] = {"prompt_tokens": 1600, "output_tokens": 5, "block_ids": tuple(range(100))}
        run = scripted([TraceRequest(at_ms, **asked) for at_ms in (0.0, 1e4)], split(), APART)
        assert run.outcome.moved_tokens.tolist() == [1600, 16]
        took_ms = [event.took_ms for event in run.told if isinstance(event, ev.TransferEnded)]
        assert took_ms == pytest.approx([moved_ms(1600), moved_ms(16)])
        assert run.outcome.cached_tokens.tolist() == [0, 1584]

    def test_transfers_share_the_link(self) -> None:
        requests = [TraceRequest(0.0, 1600, 5) for _ in range(2)]
        run = scripted(requests, split(prefill=2), Disaggregate(W[0], W[2]), Disaggregate(W[1], W[2]))
        took_ms = [event.took_ms for event in run.told if isinstance(event, ev.TransferEnded)]
        assert took_ms == pytest.approx([2 * moved_ms(1600) - LINK.floor_ms] * 2)

    def test_without_a_link_the_network_of_the_gpus_is_used(self) -> None:
        run = scripted([ONE], split(link=None), APART)
        (ended,) = [event for event in run.told if isinstance(event, ev.TransferEnded)]
        assert ended.took_ms == pytest.approx(moved_ms(1600, network_link(LLAMA.gpu)))

    @pytest.mark.parametrize("room", [1599, 1600, 1601])
    def test_too_long_for_the_worker_for_prompts_is_computed_by_who_answers(self, play, room: int) -> None:
        small = replace(LLAMA, kv_tokens=room)
        groups = (WorkerGroup(small, 1, Role.PREFILL), WorkerGroup(LLAMA, 1, Role.DECODE))
        setup = replace(split(), groups=groups, block_tokens=1)
        outcome = play(Trace("one", [ONE], 0), setup).outcome
        assert outcome.done.all()
        assert (outcome.prefill_worker[0] == 0) == (room == 1601)


ASKED: dict[str, Any] = {"prompt_tokens": 1600, "output_tokens": 5, "block_ids": tuple(range(100))}
BOTH = Setup((WorkerGroup(LLAMA, 2),), link=LINK, kv_transfer=TransferMode.AUTO)


class TestPulls:
    def pulled(self, tokens: int, at_ms: float = 1e4, **fields: Any) -> Run:
        """One worker computed a prompt; the other one gets it later, and fetches so much of it."""
        requests = [TraceRequest(0.0, **ASKED), TraceRequest(at_ms, **ASKED)]
        setup = replace(BOTH, **fields)
        return scripted(requests, setup, Aggregate(W[0]), Aggregate(W[1], Pull(W[0], tokens)))

    def test_only_the_rest_is_computed(self) -> None:
        outcome = self.pulled(800).outcome
        rest_ms = STEP.step_ms(0, 0, 800, 1600**2 - 800**2)
        assert outcome.ttft_ms[1] == pytest.approx(moved_ms(800) + rest_ms)
        assert outcome.moved_tokens.tolist() == [0, 800]
        assert outcome.cached_tokens.tolist() == [0, 800]
        assert outcome.prefill_worker.tolist() == [-1, -1]

    def test_the_events_are_those_of_the_front_end(self) -> None:
        run = self.pulled(800)
        dispatched = [event for event in run.told if isinstance(event, ev.Dispatched)][1]
        assert (dispatched.worker, dispatched.pull) == (W[1], ev.PullLeg(W[0], 800))
        (ended,) = [event for event in run.told if isinstance(event, ev.TransferEnded)]
        assert (ended.tokens, ended.size_bytes) == (800, 800 * LLAMA.kv_bytes_per_token)

    def test_what_is_not_held_any_more_is_computed(self) -> None:
        """Another prompt took its room, and the front end has not heard of it yet."""
        small = replace(LLAMA, kv_tokens=1616)
        setup = replace(BOTH, groups=(WorkerGroup(small, 1), WorkerGroup(LLAMA, 1)), kv_event_delay_ms=500.0)
        requests = [TraceRequest(0.0, **ASKED), TraceRequest(1e4, 1600, 2), TraceRequest(1e4 + 50, **ASKED)]
        run = scripted(requests, setup, Aggregate(W[0]), Aggregate(W[0]), Aggregate(W[1], Pull(W[0], 800)))
        assert run.of(ev.PrefillFailed) == [("PrefillFailed", 1e4 + 50)]
        assert run.outcome.ttft_ms[2] == pytest.approx(STEP.step_ms(0, 0, 1600, 1600**2))
        assert run.outcome.fallback.tolist() == [False, False, True]
        assert run.outcome.moved_tokens.tolist() == [0, 0, 0]

    def test_of_a_dead_worker_comes_nothing(self) -> None:
        run = self.pulled(800, failures=(Failure(0, 5e3),))
        assert run.outcome.done.all()
        assert run.outcome.fallback.tolist() == [False, True]

    def test_what_breaks_off_on_its_way_is_computed(self) -> None:
        run = self.pulled(1584, link=Link("slow", 0.01), failures=(Failure(0, 1e4 + 50),))
        outcome = run.outcome
        assert outcome.done.all()
        assert run.of(ev.PrefillFailed) == [("PrefillFailed", 1e4 + 50)]
        assert outcome.ttft_ms[1] == pytest.approx(50 + STEP.step_ms(0, 0, 1600, 1600**2))

    def test_what_its_worker_holds_itself_does_not_come_twice(self) -> None:
        begun = {**ASKED, "prompt_tokens": 800, "block_ids": tuple(range(50))}
        requests = [TraceRequest(0.0, **ASKED), TraceRequest(0.0, **begun), TraceRequest(1e4, **ASKED)]
        plans = [Aggregate(W[0]), Aggregate(W[1]), Aggregate(W[1], Pull(W[0], 1584))]
        outcome = scripted(requests, BOTH, *plans).outcome
        assert outcome.moved_tokens.tolist() == [0, 0, 784]

    def test_held_blocks_are_not_evicted_meanwhile(self) -> None:
        """The source has room for two prompts, and one comes while the first one is fetched."""
        small = replace(LLAMA, kv_tokens=2 * 1616)
        setup = Setup(
            (WorkerGroup(small, 1), WorkerGroup(LLAMA, 1)), link=Link("slow", 0.1), kv_transfer=TransferMode.AUTO
        )
        others = [TraceRequest(1e4 + 5 * n, 1600, 2) for n in range(1, 4)]
        requests = [TraceRequest(0.0, **ASKED), TraceRequest(1e4, **ASKED), *others]
        plans = [Aggregate(W[0]), Aggregate(W[1], Pull(W[0], 1584)), Aggregate(W[0])]
        run = scripted(requests, setup, *plans)
        assert run.outcome.done.all()
        assert run.outcome.moved_tokens[1] == 1584


class TestRoles:
    def test_everybody_does_what_it_is_for(self, play, shared_prompts) -> None:
        outcome = play(shared_prompts(200), split(2, 2), "kv").outcome
        assert outcome.done.all()
        assert set(outcome.prefill_worker.tolist()) == {0, 1}
        assert set(outcome.worker.tolist()) == {2, 3}
        assert outcome.itl.count == pytest.approx((outcome.output_tokens - 1).sum())
        assert (outcome.kv_arrived_ms < outcome.first_token_ms).all()

    def test_decode_workers_alone_compute_whole_requests(self, play, shared_prompts) -> None:
        outcome = play(shared_prompts(50), split(0, 2)).outcome
        assert outcome.done.all()
        assert (outcome.prefill_worker == -1).all()

    def test_nobody_computes_prompts_for_others_where_kv_never_moves(self, play, shared_prompts) -> None:
        for policy in ("kv", "cost"):
            outcome = play(shared_prompts(50), split(1, 1, kv_transfer=TransferMode.OFF), policy).outcome
            assert outcome.done.all()
            assert (outcome.prefill_worker == -1).all()

    def test_workers_for_both_pass_prompts_on_where_it_is_always_to_be_so(self, play, shared_prompts) -> None:
        outcome = play(shared_prompts(100), split(0, 0, both=3), "cost").outcome
        assert outcome.done.all()
        assert (outcome.prefill_worker >= 0).all()
        assert (outcome.prefill_worker != outcome.worker).all()

    def test_requests_are_rejected_where_nobody_can_answer(self, play, shared_prompts) -> None:
        outcome = play(shared_prompts(50), split(1, 1, drains=(Drain(1, 0.0),))).outcome
        assert set(outcome.status.tolist()) <= {Status.REJECTED, Status.DONE}
        assert (outcome.status == Status.REJECTED).any()

    def test_a_worker_can_change_its_role(self, play, shared_prompts) -> None:
        trace = shared_prompts(200, every_ms=10.0)
        setup = split(1, 2, role_changes=(RoleChange(2, 1000.0, Role.PREFILL),), failures=(Failure(2, 1500.0, 10.0),))
        outcome = play(trace, setup, "least_loaded").outcome
        assert (outcome.status != Status.REJECTED).all()
        before, after = outcome.dispatched_ms < 1000.0, outcome.dispatched_ms > 1600.0
        assert set(outcome.worker[before].tolist()) == {1, 2}
        assert set(outcome.worker[after].tolist()) == {1}
        assert set(outcome.prefill_worker[after].tolist()) == {0, 2}


class TestFailures:
    def test_a_prompt_is_computed_by_who_answers_when_the_other_dies(self) -> None:
        run = scripted([ONE], split(failures=(Failure(0, 10.0),)), APART)
        assert run.of(*LEGS)[:2] == [("Dispatched", 0.0), ("PrefillFailed", 10.0)]
        assert run.outcome.ttft_ms[0] == pytest.approx(10.0 + STEP.step_ms(0, 0, 1600, 1600**2))
        assert (run.outcome.prefill_worker[0], run.outcome.fallback[0]) == (-1, True)

    def test_it_is_when_the_transfer_breaks_off(self) -> None:
        run = scripted([ONE], split(failures=(Failure(0, 100.0),), link=Link("slow", 0.1)), APART)
        assert [name for name, _ in run.of(*LEGS)] == ["Dispatched", "PrefillEnded", "PrefillFailed", "FirstToken"]
        assert run.outcome.ttft_ms[0] == pytest.approx(100.0 + STEP.step_ms(0, 0, 1600, 1600**2))

    def test_a_dead_worker_for_prefill_is_noticed_at_once(self) -> None:
        late = replace(ONE, at_ms=50.0)
        run = scripted([late], split(failures=(Failure(0, 10.0),)), APART)
        assert [name for name, _ in run.of(*LEGS)] == ["Dispatched", "PrefillFailed", "FirstToken"]
        assert run.outcome.done.all()

    @pytest.mark.parametrize("at_ms", [10.0, 100.0])
    def test_it_fails_where_nothing_may_be_computed_locally(self, at_ms: float) -> None:
        setup = split(failures=(Failure(0, at_ms),), link=Link("slow", 0.1), fallback_to_local=False)
        run = scripted([ONE], setup, APART)
        assert run.outcome.status.tolist() == [Status.FAILED]
        assert run.outcome.end_ms.tolist() == [at_ms]

    def test_who_was_to_answer_may_be_gone_when_it_is_asked(self) -> None:
        setup = split(1, 2, failures=(Failure(1, 10.0),))
        run = scripted([ONE], setup, APART, Disaggregate(W[0], W[2]))
        names = [name for name, _ in run.of(*LEGS)]
        first = ["Dispatched", "PrefillEnded", "AttemptFailed"]
        assert names == [*first, "Dispatched", "PrefillEnded", "TransferEnded", "FirstToken"]
        assert run.outcome.done.all()
        assert run.outcome.worker.tolist() == [2]

    def test_a_request_fails_with_the_worker_that_decodes_it(self) -> None:
        run = scripted([ONE], split(failures=(Failure(1, 100.0),), link=Link("slow", 0.1)), APART)
        assert run.outcome.status.tolist() == [Status.FAILED]
        assert run.outcome.end_ms.tolist() == [100.0]

    @pytest.mark.parametrize("worker", [0, 2])
    def test_only_what_passes_through_a_dead_worker_suffers(self, play, shared_prompts, worker: int) -> None:
        trace = shared_prompts(300, every_ms=4.0)
        setup = split(2, 2, failures=(Failure(worker, 400.0),), link=Link("slow", 1.0))
        outcome = play(trace, setup, "round_robin").outcome
        failed = outcome.status == Status.FAILED
        if worker == 0:
            assert not failed.any()
            assert outcome.fallback.any()
        else:
            assert failed.any()
            assert outcome.done[~failed].all()
            assert (outcome.end_ms[failed] == 400.0).all()
            assert (outcome.worker[failed] == worker).all()

    def test_kv_that_nobody_waits_for_is_let_go(self, shared_prompts) -> None:
        """The decoder dies again and again; the KV of what it had must not stay at the other one."""
        small = replace(LLAMA, kv_tokens=16_000)
        groups = (WorkerGroup(small, 1, Role.PREFILL), WorkerGroup(LLAMA, 1, Role.DECODE))
        failures = tuple(Failure(1, 200.0 * n, back_after_ms=1.0) for n in range(1, 10))
        setup = Setup(groups, failures=failures, link=Link("slow", 0.5), kv_transfer=TransferMode.ALWAYS)
        simulation = Simulation(shared_prompts(300, every_ms=10.0), setup, PolicyRegistry().get("least_loaded"))
        outcome = simulation.run()
        assert_nothing_left(simulation)
        assert (outcome.status == Status.FAILED).sum() > 10
        later = outcome.arrival_ms > 1900
        assert outcome.done[later].any()


class TestLinks:
    def test_what_is_thought_of_links_may_be_wrong_at_first(self, play, shared_prompts) -> None:
        believed = {}
        for speed in (0.1, 1.0, 10.0):
            simulation = Simulation(Trace("one", [ONE], 16), split(believed_speed=speed), Scripted([APART]), seed=1)
            simulation._open()
            links: Any = simulation.ledger.timing.links  # type: ignore[attr-defined]
            pair = next(iter(links.pairs.values()))
            believed[speed] = pair.ms(256 << 20)
        assert believed[0.1] > 5 * believed[1.0] > 25 * believed[10.0]

    def test_transfers_teach_it_better(self, shared_prompts) -> None:
        setup = split(believed_speed=0.1)
        simulation = Simulation(shared_prompts(300, every_ms=30.0, groups=300), setup, Scripted([APART]))
        simulation.run()
        links: Any = simulation.ledger.timing.links  # type: ignore[attr-defined]
        truth_ms = moved_ms(640)
        assert min(abs(pair.ms(640 * LLAMA.kv_bytes_per_token) / truth_ms - 1) for pair in links.pairs.values()) < 0.25


def test_same_seed_same_bytes(play, shared_prompts) -> None:
    digests = {play(shared_prompts(), split(2, 2), "random", seed=seed).outcome.digest() for seed in (4, 4, 5)}
    assert len(digests) == 2


def test_several_front_ends_share_a_fleet_with_roles(play, shared_prompts) -> None:
    played = play(shared_prompts(200), split(2, 2, front_ends=3), "cost")
    assert played.outcome.done.all()
    assert (played.outcome.prefill_worker >= 0).all()
    for front_end in played.ledger._front_ends:
        for worker in front_end.ledger.snapshot().workers:
            assert (worker.running, worker.sequences, worker.prefill_tokens, worker.kv_tokens) == (0, 0, 0, 0)


@settings(max_examples=40, deadline=None)
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
    prefill, decode, both = (data.draw(st.integers(low, 2)) for low in (0, 1, 0))
    small = replace(LLAMA, kv_tokens=data.draw(st.sampled_from([2048, 4096, 100_000])))
    counts = ((Role.PREFILL, prefill), (Role.DECODE, decode), (Role.BOTH, both))
    workers = prefill + decode + both
    setup = Setup(
        tuple(WorkerGroup(small, count, role) for role, count in counts if count),
        max_num_seqs=data.draw(st.sampled_from([1, 3, 64])),
        link=Link("any", data.draw(st.sampled_from([0.1, 50.0])), data.draw(st.sampled_from([0.0, 3.0]))),
        kv_transfer=data.draw(st.sampled_from([None, *TransferMode])),
        believed_speed=data.draw(st.sampled_from([None, 1.0, 100.0])),
        kv_events=data.draw(st.booleans()),
        fallback_to_local=data.draw(st.booleans()),
        front_ends=data.draw(st.sampled_from([1, 2])),
        failures=tuple(
            Failure(rng.randrange(workers), rng.random() * 1000, data.draw(st.sampled_from([None, 0.0, 200.0])))
            for _ in range(data.draw(st.integers(0, 2)))
        ),
        role_changes=tuple(
            RoleChange(rng.randrange(workers), rng.random() * 1000, data.draw(st.sampled_from(list(Role))))
            for _ in range(data.draw(st.integers(0, 1)))
        ),
        retries=data.draw(st.integers(0, 1)),
    )
    policy = PolicyRegistry().get(data.draw(st.sampled_from(["cost", "kv", "round_robin", "power_of_two"])))
    shuffle = data.draw(st.booleans())
    simulation = Simulation(Trace("any", requests, 64), setup, policy, shuffle_ties=shuffle)
    outcome = simulation.run()
    for modelled in simulation._workers:
        assert not modelled.flights
        assert not modelled.legs
        assert modelled.engine.held == 0
        assert modelled.engine.kv_use == 0
    assert len(simulation._network) == 0
    if setup.front_ends == 1:
        assert_nothing_left(simulation)
    done = outcome.done
    assert (outcome.status >= 0).all()
    moved = ~np.isnan(outcome.kv_arrived_ms)
    assert (outcome.kv_arrived_ms <= outcome.first_token_ms)[moved & done].all()
    assert (outcome.moved_tokens[done & moved] > 0).all()
    assert (outcome.end_ms[done] >= outcome.first_token_ms[done]).all()
    assert done.all() or setup.failures or setup.role_changes or setup.transfer.mode is TransferMode.OFF
    assert sum(worker.output_tokens for worker in outcome.workers) == outcome.output_tokens.sum()
    assert outcome.itl.count == pytest.approx(np.maximum(outcome.output_tokens - 1, 0).sum())
    assert (outcome.itl.weights >= 0).all()
    if done.all():
        assert outcome.itl.total_ms == pytest.approx((outcome.end_ms - outcome.first_token_ms).sum())
