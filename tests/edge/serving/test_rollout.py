"""A new policy for a share of live traffic: by engines that do what a test says, and by simulated ones."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from typing import Any

import msgspec
import pytest

from pointsman.core.model.decision import Decision
from pointsman.core.model.errors import PolicyError
from pointsman.core.model.request import Request
from pointsman.core.model.view import FleetView
from pointsman.core.policies.policy import NO_TIMING, Timing, decision
from pointsman.core.policies.registry import PolicyRegistry
from pointsman.core.trials.arms import Arm, By
from pointsman.core.trials.tally import End
from pointsman.edge.configuration.route_key import RouteKey
from pointsman.edge.serving.policies import ActivePolicy
from pointsman.edge.serving.rollout_order import Orders, RolloutOrder
from pointsman.edge.serving.rollout_report import RolloutDocument, shadow_report
from support.scripted_fleet import Fleet, hang
from support.virtual.fleet import fleet_of
from support.virtual.loop import VirtualLoop, run_virtual

HALF = RolloutOrder("last", 0.5, By.REQUEST)


class Picks:
    """Always the same worker."""

    def __init__(self, name: str, index: int) -> None:
        self.name = name
        self._index = index
        self.broken = False

    def decide(self, request: Request, view: FleetView, timing: Timing, now_ms: float, rng: random.Random) -> Decision:
        if self.broken:
            raise ZeroDivisionError("oops")
        return decision(self.name, request, view, now_ms, self._index % len(view), view.load, "requests")


@pytest.fixture
def policies(monkeypatch: pytest.MonkeyPatch) -> dict[str, Picks]:
    """Policies beside the built-in ones: the first worker, the last one."""
    made = {"first": Picks("first", 0), "last": Picks("last", -1)}
    monkeypatch.setattr("pointsman.edge.serving.frontend.load_registry", lambda: PolicyRegistry(made.values()))
    return made


async def opened(fleet: Fleet, **settings: Any) -> None:
    for name in ("a", "b"):
        await fleet.engine(name)
    await fleet.open(policy="first", **settings)


async def document(fleet: Fleet, query: str = "") -> RolloutDocument:
    answer = await fleet.ask(f"/v1/rollout{query}", method="GET", admin=True)
    return msgspec.json.decode(answer.body, type=RolloutDocument)


async def test_each_arm_is_decided_by_its_policy_and_counted(fleet: Fleet, policies: dict[str, Picks]) -> None:
    await opened(fleet, rollout=HALF)
    await asyncio.gather(*(fleet.chat() for _ in range(60)))
    rollout = fleet.frontend.policy.rollout
    assert rollout is not None
    counts = {arm: rollout.requests(arm)[End.FINISHED] for arm in Arm}
    assert counts == {Arm.BASE: len(fleet.engines[0].requests), Arm.TRIAL: len(fleet.engines[1].requests)}
    assert 12 < counts[Arm.TRIAL] < 48
    report = (await document(fleet)).rollout
    assert report is not None
    rows = {row.name: row for row in report.rows}
    assert rows["cached_share"].base == pytest.approx(0.4)  # 4 of 10, as the engines say
    assert rows["failed_share"].trial == 0
    assert all(rows[name].base > 0 for name in ("ttft_ms", "ttft_ms_p99", "tokens_per_s"))  # type: ignore[operator]
    assert (report.state, report.policy, report.base, report.share) == ("running", "last", "first", 0.5)
    metrics = (await fleet.ask("/metrics", method="GET", admin=True)).body.decode()
    assert f'pointsman_arm_requests{{arm="trial",status="finished"}} {float(counts[Arm.TRIAL])}' in metrics
    assert f'pointsman_arm_ttft_seconds_count{{arm="base"}} {float(counts[Arm.BASE])}' in metrics
    assert 'pointsman_rollout_share{policy="last"} 0.5' in metrics
    fleet.at_rest()


async def test_a_session_stays_with_one_policy(fleet: Fleet, policies: dict[str, Picks]) -> None:
    order = RolloutOrder("last", 0.5, By.SESSION)
    await opened(fleet, rollout=order, route_key=RouteKey.parse("header:x-session"))
    await asyncio.gather(*(fleet.chat([(b"x-session", b"s%d" % (i % 10))]) for i in range(40)))
    seen = Counter(
        (engine.name, request.header(b"x-session")) for engine in fleet.engines for request in engine.requests
    )
    assert sorted(seen.values()) == [4] * 10
    assert {name for name, _ in seen} == {"a", "b"}
    await fleet.chat()
    report = (await document(fleet)).rollout
    assert report is not None
    assert report.without_session == 1


async def test_a_policy_that_raises_loses_no_request_and_is_rolled_back(
    fleet: Fleet, policies: dict[str, Picks], caplog: pytest.LogCaptureFixture
) -> None:
    await opened(fleet, rollout=HALF)
    policies["last"].broken = True
    for _ in range(30):
        assert (await fleet.chat()).status == 200
    assert len(fleet.engines[0].requests) == 30
    rollout = fleet.frontend.policy.rollout
    assert rollout is not None
    assert (rollout.running, rollout.errors) == (False, 3)
    lines = [record.getMessage() for record in caplog.records if "rolled back" in record.getMessage()]
    assert len(lines) == 1
    assert "rollout of last at 50 % rolled back to first after 0 of its requests: its policy failed 3 times" in lines[0]
    status = json.loads((await fleet.ask("/v1/status", method="GET", admin=True)).body)
    assert status["rollout"]["state"] == "rolled back"
    assert "ZeroDivisionError('oops')" in status["rollout"]["why"]
    metrics = (await fleet.ask("/metrics", method="GET", admin=True)).body.decode()
    assert 'pointsman_rollout_share{policy="last"} 0.0' in metrics
    assert 'pointsman_rollout_rolled_back{policy="last"} 1.0' in metrics


async def test_clients_that_give_up_waiting_count_for_as_long_as_they_waited(
    fleet: Fleet, policies: dict[str, Picks]
) -> None:
    await opened(fleet, rollout=RolloutOrder("last", 1.0, By.REQUEST))
    fleet.engines[1].answer = hang
    asked = asyncio.create_task(fleet.chat())
    await fleet.until(lambda: fleet.engines[1].running == 1)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    rollout = fleet.frontend.policy.rollout
    assert rollout is not None
    await fleet.until(lambda: rollout.requests(Arm.TRIAL) == {End.CANCELLED: 1})
    assert rollout.comparison.sums.trial.ttft.sketch.total == 1
    assert rollout.comparison.sums.trial.pace.sketch.total == 0


async def test_it_is_widened_rolled_back_and_begun_again_on_the_admin_port(
    fleet: Fleet, policies: dict[str, Picks]
) -> None:
    await opened(fleet)
    assert (await document(fleet)).rollout is None

    async def put(**change: Any) -> tuple[int, str]:
        answer = await fleet.ask("/v1/rollout", change, method="PUT", admin=True)
        return answer.status, answer.body.decode()

    status, text = await put(share="5%")
    assert (status, "name the policy to begin one" in text) == (400, True)
    assert (await put(policy="last"))[0] == 200
    rollout = fleet.frontend.policy.rollout
    assert rollout is not None
    assert rollout.order == RolloutOrder("last", 0.05, By.REQUEST)
    assert (await put(share="25%", worse_by="10%", auto_rollback=False))[0] == 200
    assert fleet.frontend.policy.orders().rollout == RolloutOrder("last", 0.25, By.REQUEST, 0.1, False)
    for wrong, message in (
        ({"share": "125%"}, "share: expected a share from 0% to 100%"),
        ({"policy": "best"}, "unknown policy 'best'"),
        ({"policy": "first"}, "the policy first decides already"),
        ({"by": "session"}, "by session needs routing.route_key"),
        ({"policy": "session"}, "session needs routing.route_key"),
        ({"by": "user"}, "Invalid enum value 'user'"),
        ({"shares": "5%"}, "unknown field `shares`"),
    ):
        status, text = await put(**wrong)
        assert (status, message in text) == (400, True), text
    assert fleet.frontend.policy.orders().rollout == RolloutOrder("last", 0.25, By.REQUEST, 0.1, False)
    answer = await fleet.ask("/v1/rollout", {"reason": "pagers\n\x1b[31mred"}, method="DELETE", admin=True)
    assert json.loads(answer.body)["rollout"]["why"] == "pagers  [31mred"
    await fleet.chat()
    assert len(fleet.engines[0].requests) == 1
    assert (await put(share="100%"))[0] == 200
    await fleet.chat()
    assert len(fleet.engines[1].requests) == 1
    assert (await document(fleet, "?sums=1")).sums is not None


async def test_roll_back_without_a_rollout_is_told(fleet: Fleet, policies: dict[str, Picks]) -> None:
    await opened(fleet)
    answer = await fleet.ask("/v1/rollout", method="DELETE", admin=True)
    assert (answer.status, b"no rollout runs here" in answer.body) == (404, True)


async def test_shadows_decide_along_and_one_that_fails_is_switched_off(
    fleet: Fleet, policies: dict[str, Picks], caplog: pytest.LogCaptureFixture
) -> None:
    await opened(fleet, shadow=("round_robin", "last"))
    for _ in range(4):
        await fleet.chat()
    assert len(fleet.engines[0].requests) == 4
    by = {shadow.policy: shadow for shadow in (await document(fleet)).shadows}
    assert by["round_robin"].decisions == 4
    assert by["last"].agreement == 0.0
    assert by["round_robin"].agreement == 0.25  # it would go to b, which never gets anything, but for the first
    policies["last"].broken = True
    for _ in range(9):
        assert (await fleet.chat()).status == 200
    shadow = next(one for one in (await document(fleet)).shadows if one.policy == "last")
    assert (shadow.failed, shadow.decisions) == (5, 4)
    assert shadow.off is not None
    assert "5 times in a row" in shadow.off
    assert sum("is switched off" in record.getMessage() for record in caplog.records) == 1
    metrics = (await fleet.ask("/metrics", method="GET", admin=True)).body.decode()
    assert 'pointsman_shadow_decisions_total{outcome="failed",policy="last"} 5.0' in metrics


def test_a_bad_policy_on_simulated_engines_rolls_back_by_itself(policies: dict[str, Picks]) -> None:
    """In virtual time: on a busy machine all requests wait, and differences drown."""
    settings = {"profile": "instant", "default_output_tokens": 4, "kv_events": None, "replay": None}
    front = {"policy": "first", "rollout": HALF, "tokenize": False}

    async def main(loop: VirtualLoop) -> None:
        async with fleet_of(loop, 2, engine=settings, frontend=front) as fleet:
            fleet.engines[1].set_faults(first_byte_delay_ms=25.0)
            policy = fleet.frontends[0].policy
            rollout = policy.rollout
            assert rollout is not None

            async def ask(count: int) -> None:
                tasks = [fleet.chat(max_tokens=4)[1] for _ in range(count)]
                assert {answer.status for answer in await asyncio.gather(*tasks)} == {200}

            for _ in range(19):
                await ask(20)
                policy.look()  # as each second's tick does
                if not rollout.running:
                    break
            assert not rollout.running
            why = str(rollout.order.ended)
            assert "it is worse: TTFT is +" in why or "time per output token" in why
            before = sum(rollout.requests(Arm.TRIAL).values())
            await ask(10)
            assert sum(rollout.requests(Arm.TRIAL).values()) == before
            await fleet.until(lambda: not fleet.at_rest(), 5.0)

    run_virtual(main)


# ---- without a fleet


def active(**settings: Any) -> ActivePolicy:
    extra = [Picks("first", 0), Picks("last", -1)]
    return ActivePolicy(PolicyRegistry(extra), "first", **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rollout": RolloutOrder("best", 0.5, By.REQUEST)}, "routing.rollout: unknown policy 'best'"),
        ({"rollout": RolloutOrder("first", 0.5, By.REQUEST)}, "first decides already"),
        ({"rollout": RolloutOrder("first", 0.5, By.REQUEST)}, r"routing.rollout: .*\(policy first\); name another one"),
        ({"rollout": RolloutOrder("last", 0.5, By.SESSION)}, "routing.rollout: a rollout by session needs routing.rou"),
        ({"shadow": ("best",)}, "routing.shadow: unknown policy 'best'"),
    ],
)
def test_what_can_not_be_is_refused_at_start(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        active(**settings)


def test_a_switch_changes_the_base_and_completes_a_rollout_of_that_policy() -> None:
    one = active(rollout=HALF)
    before = one.rollout
    one.switch("random")
    assert one.rollout is not None
    assert one.rollout is not before
    assert (one.rollout.base.name, one.rollout.order) == ("random", HALF)
    one.switch("last")
    assert (one.rollout, one.orders()) == (None, Orders("last"))


def test_shadows_are_compared_anew_with_another_policy() -> None:
    policy = active(shadow=("round_robin",))
    view, request = FleetView.of(["a/0", "b/0"], last_dispatch=[2, 1]), Request("r", "m", 0.0, 10)

    def decide() -> None:
        decision = policy.decide(request, view, NO_TIMING, 0.0, random.Random).decision
        policy.shadows.decide(request, view, NO_TIMING, 0.0, random.Random, decision)

    for _ in range(3):
        decide()
    (shadow,) = policy.shadows.all
    assert (shadow_report(shadow).decisions, shadow_report(shadow).agreement) == (3, 0.0)
    policy.switch("last")
    assert shadow_report(shadow).decisions == 0
    decide()
    assert (shadow_report(shadow).decisions, shadow_report(shadow).agreement) == (1, 1.0)
    policy.switch("first")
    policy.switch("first")
    assert (shadow.total.decisions, shadow.total.agreed, shadow_report(shadow).decisions) == (4, 1, 0)


def test_front_ends_take_over_what_another_one_was_told() -> None:
    one, two = active(), active()
    one.roll_out(HALF)
    two.obey(one.orders())
    mine = two.rollout
    assert two.orders() == one.orders()
    two.obey(one.orders())
    assert two.rollout is mine  # nothing new: what was counted stays
    assert one.rollout is not None
    one.rollout.end("it is worse")
    two.obey(one.orders())
    assert two.rollout is mine
    assert two.orders() == one.orders()
    assert not mine.running  # type: ignore[union-attr]
    one.roll_out(HALF)
    two.obey(one.orders())
    assert two.rollout is not mine
    assert two.orders() == one.orders()
    one.switch("last")
    two.obey(one.orders())
    assert two.orders() == one.orders() == Orders("last")
    assert (
        active(rollout=RolloutOrder("last", 0.5, By.REQUEST, ended="it is worse")).rollout.ticket(  # type: ignore[union-attr]
            Request("r", "m", 0.0, 1)
        )
        is None
    )


def test_several_watchers_share_the_chance_of_a_false_alarm() -> None:
    assert active(rollout=HALF, watchers=4).rollout.alpha == pytest.approx(0.05 / 4)  # type: ignore[union-attr]


def test_auto_and_what_it_leaves_decisions_to_are_the_same_policy() -> None:
    for base, trial in (("cost", "auto"), ("auto", "cost")):
        with pytest.raises(PolicyError, match=rf"the policy {trial} decides already \(policy {base}\)"):
            ActivePolicy(PolicyRegistry(), base, rollout=RolloutOrder(trial, 0.5, By.REQUEST))
        one = ActivePolicy(PolicyRegistry(), "random", rollout=RolloutOrder(trial, 0.5, By.REQUEST))
        one.switch(base)
        assert one.rollout is None  # complete


def test_what_auto_leaves_all_decisions_to_needs_no_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    one = active(rollout=HALF)
    monkeypatch.setattr(one, "in_force", lambda: "last")
    with pytest.raises(PolicyError, match=r"the policy last decides already \(policy first\)"):
        one.roll_out(HALF)
    one.switch("random")
    assert one.rollout is None  # complete
