"""Decisions made again by another policy: on the recorded state they are what a simulation decides."""

from __future__ import annotations

import random

import pytest

from pointsman.app.simulate.setup import Setup, WorkerGroup
from pointsman.app.simulate.simulation import Simulation
from pointsman.core.model.decision import Decision
from pointsman.core.model.errors import PolicyError
from pointsman.core.model.request import Request
from pointsman.core.model.view import Column, FleetView
from pointsman.core.policies.chance import decision_chance
from pointsman.core.policies.kv import Kv
from pointsman.core.policies.policy import Policy, Timing, decision, least_row
from pointsman.core.policies.registry import PolicyRegistry
from pointsman.core.policies.round_robin import RoundRobin
from pointsman.core.timing.fleet_times import fleet_times
from pointsman.core.timing.profiles import profile
from pointsman.core.timing.worker_times import WorkerTimes
from pointsman.core.workload.trace import Trace, TraceRequest
from pointsman.edge.decisions.state import Recorded, pack_state, unpack_state
from pointsman.edge.decisions.step_times import step_times
from pointsman.edge.decisions.what_if import summary, what_if
from support.plan_fleets import REQUEST, fleet
from support.plan_fleets import decide as plan_for
from support.plan_fleets import times as plan_times

LLAMA = profile("h100/llama-8b")
SEED = 3
SETUP = Setup((WorkerGroup(LLAMA, 3),))


class Judge:
    """Predicts the prompt's own time, and a fixed one for each request that runs there."""

    name = "judge"

    def decide(self, request: Request, view: FleetView, timing: Timing, now_ms: float, rng: random.Random) -> Decision:
        first = 0.1 * (request.prompt_tokens - view.column(Column.CACHED_TOKENS))
        slowdown = 5.0 * view.load
        row = least_row(first + slowdown, view.eligible_rows(), rng)
        terms = {"ttft_ms": first, "slowdown_ms": slowdown}
        return decision(self.name, request, view, now_ms, row, first + slowdown, "ms", terms)


class Instead:
    """One request is decided by another policy, all others by kv."""

    name = "instead"

    def __init__(self, policy: Policy, request_id: str) -> None:
        self._policy, self._request_id, self._kv = policy, request_id, Kv()

    def decide(self, request: Request, view: FleetView, timing: Timing, now_ms: float, rng: random.Random) -> Decision:
        policy = self._policy if request.id == self._request_id else self._kv
        return policy.decide(request, view, timing, now_ms, rng)


def chats() -> Trace:
    """Eight conversations of five turns, about as many as three workers can serve."""
    requests = []
    for number in range(40):
        chat, turn = number % 8, number // 8
        blocks = tuple(1_000 * chat + block for block in range(20 + 20 * turn))
        requests.append(TraceRequest(40.0 * number, 16 * len(blocks) + 5, 60, block_ids=blocks))
    return Trace("chats", tuple(requests), 16)


def simulated(policy: Policy) -> list[tuple[Request, Decision, str]]:
    """Each decision of a simulation, with its packed state."""
    made: list[tuple[Request, Decision, str]] = []

    def keep(request: Request, one: Decision) -> None:
        times = fleet_times(simulation_times(one)).rows(one.view.workers)
        made.append((request, one, pack_state(request, one, times, one.at_ms, SEED)))

    Simulation(chats(), SETUP, policy, seed=SEED, on_decision=keep).run()
    return made


def simulation_times(one: Decision) -> dict[str, WorkerTimes]:
    return {str(worker): WorkerTimes(LLAMA.step) for worker in one.view.workers}


@pytest.fixture(scope="module")
def recorded() -> list[tuple[Request, Decision, str]]:
    return simulated(Kv())


@pytest.mark.parametrize("name", PolicyRegistry().names())
def test_each_policy_decides_on_the_record_as_it_would_have_then(
    name: str, recorded: list[tuple[Request, Decision, str]]
) -> None:
    policy = PolicyRegistry().get(name)
    for request, then, text in recorded:
        timing = fleet_times(simulation_times(then))
        own = policy.decide(request, then.view, timing, then.at_ms, decision_chance(SEED, request.id))
        again = what_if(unpack_state(text), policy)
        assert (None if again.instead is None else again.instead.worker) == own.worker
        assert again.changed is (own.worker != then.worker)


def test_the_recorded_policy_decides_the_same_again(recorded: list[tuple[Request, Decision, str]]) -> None:
    assert len(recorded) == 40
    assert not [text for _, _, text in recorded if what_if(unpack_state(text), Kv()).changed]


def test_a_changed_pick_agrees_with_a_fresh_simulation(recorded: list[tuple[Request, Decision, str]]) -> None:
    answers = [what_if(unpack_state(text), RoundRobin(), Judge()) for _, _, text in recorded]
    changed = [answer for answer in answers if answer.changed]
    assert changed
    for answer in changed[:: max(1, len(changed) // 4)]:
        fresh = {one.request_id: one for _, one, _ in simulated(Instead(RoundRobin(), answer.id))}
        assert answer.instead is not None
        assert fresh[answer.id].worker == answer.instead.worker


def test_the_picks_are_compared_by_the_judge(recorded: list[tuple[Request, Decision, str]]) -> None:
    answers = [what_if(unpack_state(text), RoundRobin(), Judge()) for _, _, text in recorded]
    for answer in answers:
        assert answer.dearer_ms == pytest.approx(sum(answer.differences.values()), abs=1e-5)
        if not answer.changed:
            assert answer.dearer_ms == 0
            assert answer.sentence.endswith("too")
    told = summary("round_robin", answers, without_state=2)
    assert (told.decisions, told.without_state) == (40, 2)
    assert told.changed == sum(answer.changed for answer in answers)
    assert told.dearer_ms == pytest.approx(sum(answer.dearer_ms or 0 for answer in answers if answer.changed), abs=1e-2)
    assert sum(told.requests_before.values()) == sum(told.requests_instead.values()) == 40
    assert told.sentence.startswith(f"round_robin would have chosen another worker in {told.changed} of 40 decisions, ")


def one_state(recorded: list[tuple[Request, Decision, str]]) -> Recorded:
    return unpack_state(recorded[-1][2])


def test_without_a_judge_only_the_picks_are_told(recorded: list[tuple[Request, Decision, str]]) -> None:
    answer = what_if(one_state(recorded), RoundRobin())
    assert (answer.dearer_ms, answer.differences, answer.judge) == (None, {}, "")


class Broken:
    name = "broken"

    def decide(self, request: Request, view: FleetView, timing: Timing, now_ms: float, rng: random.Random) -> Decision:
        raise KeyError("gone")


class Elsewhere:
    name = "elsewhere"

    def decide(self, request: Request, view: FleetView, timing: Timing, now_ms: float, rng: random.Random) -> Decision:
        other = FleetView.of(["z/0"])
        return decision(self.name, request, other, now_ms, 0, view.column(Column.RUNNING), "requests")


def test_a_policy_that_fails_is_named(recorded: list[tuple[Request, Decision, str]]) -> None:
    with pytest.raises(PolicyError, match=r"the policy broken failed on request .*KeyError\('gone'\)"):
        what_if(one_state(recorded), Broken())
    with pytest.raises(PolicyError, match=r"the policy elsewhere failed on request .*: its decision has another view"):
        what_if(one_state(recorded), Elsewhere())


def test_step_times_of_the_chosen_worker(recorded: list[tuple[Request, Decision, str]]) -> None:
    times = step_times(one_state(recorded))
    assert times is not None
    assert times.times_others == pytest.approx(1)
    assert times.token_ms >= LLAMA.step.d_ms_per_prefill_token
    assert times.queue_ms > 0


def test_a_plan_that_the_judge_takes_to_be_hopeless_is_compared_all_the_same() -> None:
    """The judge works its plans out when it is asked for this one."""
    view = fleet("pd")
    made = plan_for(view, policy=PolicyRegistry().get("least_loaded"))
    assert made.prefill_worker == "w0/0"
    then = unpack_state(pack_state(REQUEST, made, plan_times(view).rows(view.workers), 0.0, SEED))
    answer = what_if(then, PolicyRegistry().get("cost"), PolicyRegistry().get("cost"))
    assert answer.recorded is not None
    assert (answer.recorded.prefill, answer.recorded.worker) == ("w0/0", "w1/0")
    assert answer.dearer_ms is not None
    assert answer.dearer_ms < 0
    assert answer.differences["transfer_ms"] < 0
