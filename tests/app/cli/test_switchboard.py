"""The policy that several front ends share."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import pytest

from pointsman.app.cli.switchboard import Message, Switchboard, follow
from pointsman.core.policies.registry import PolicyRegistry
from pointsman.core.trials.arms import By
from pointsman.edge.configuration.loader import load_text
from pointsman.edge.configuration.tree import ConfigTree
from pointsman.edge.serving.policies import ActivePolicy
from pointsman.edge.serving.rollout_order import Orders, RolloutOrder
from pointsman.edge.serving.settings import configured_orders


class Office:
    """A switchboard and front ends that are nothing but their policy."""

    def __init__(self) -> None:
        self.board = Switchboard(Orders("prefix"))
        self.policies: dict[int, ActivePolicy] = {}
        self._ends: dict[int, socket.socket] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def begin(self, index: int) -> ActivePolicy:
        end = self._ends[index] = self.board.connect(index)
        policy = self.policies[index] = _started(self.board.orders)
        self._tasks[index] = asyncio.create_task(follow(end, f"http://a:{index}", policy))
        await self.until(lambda: index in self.board.admin_urls)
        return policy

    async def end(self, index: int) -> None:
        task = self._tasks.pop(index)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self._ends.pop(index).close()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not holds():
                self.board.exchange()
                await asyncio.sleep(0.005)

    def all_have(self, name: str) -> bool:
        return {policy.configured_name for policy in self.policies.values()} == {name}

    def all_agree(self) -> bool:
        return all(policy.orders() == self.board.orders for policy in self.policies.values())


def _started(orders: Orders) -> ActivePolicy:
    return ActivePolicy(PolicyRegistry(), orders.policy, rollout=orders.rollout)


@pytest.fixture
async def office() -> AsyncIterator[Office]:
    office = Office()
    yield office
    for index in tuple(office._tasks):
        await office.end(index)
    office.board.close()


async def test_a_switch_at_one_reaches_all(office: Office) -> None:
    policies = [await office.begin(index) for index in range(3)]
    assert office.board.admin_urls == {index: f"http://a:{index}" for index in range(3)}
    for index, name in enumerate(["random", "round_robin", "random"]):
        policies[index].switch(name)
        await office.until(lambda name=name: office.all_have(name))  # type: ignore[misc]
        assert office.board.orders == Orders(name)


async def test_switches_at_two_at_once_end_with_one_policy(office: Office) -> None:
    first, second = await office.begin(0), await office.begin(1)
    first.switch("random")
    second.switch("round_robin")
    await office.until(lambda: office.board.orders != Orders("prefix") and office.all_agree())


async def test_one_that_is_started_again_takes_the_policy_in_force(office: Office) -> None:
    first = await office.begin(0)
    await office.begin(1)
    await office.end(1)
    first.switch("random")
    await office.until(lambda: office.board.orders.policy == "random")
    assert (await office.begin(1)).configured_name == "random"
    first.switch("round_robin")
    await office.until(lambda: office.all_have("round_robin"))


async def test_one_that_cannot_be_switched_says_so(office: Office, caplog: pytest.LogCaptureFixture) -> None:
    first, second = await office.begin(0), await office.begin(1)
    second._registry = PolicyRegistry()  # a plug-in that only the other one has
    first._registry.add(type("Mine", (), {"name": "mine", "decide": lambda *arguments: None})())
    first.switch("mine")
    await office.until(lambda: "another front end was switched to mine, this one stays with prefix" in caplog.text)
    assert second.configured_name == "prefix"


def test_nobody_is_told_twice_and_a_full_line_waits() -> None:
    board = Switchboard(Orders("prefix"))
    end = board.connect(0)
    board._hear(0, Message(orders=Orders("random")))
    with suppress(BlockingIOError):
        while True:
            board._lines[0].send(b"{}")
    board.exchange()
    assert board._owed == {0}
    with suppress(BlockingIOError):
        while True:
            end.recv(4096)
    board.exchange()
    board.exchange()
    assert end.recv(4096) == b'{"orders":{"policy":"random"}}'
    with pytest.raises(BlockingIOError):
        end.recv(4096)
    board.close()
    end.close()


async def test_a_rollout_at_one_reaches_all_and_so_does_its_end(office: Office) -> None:
    first, second = await office.begin(0), await office.begin(1)
    order = RolloutOrder("random", 0.05, By.REQUEST)
    first.roll_out(order)
    await office.until(lambda: office.board.orders.rollout is not None and office.all_agree())
    third = await office.begin(2)  # one that joins, or comes back, takes part
    assert third.orders() == Orders("prefix", order)
    assert second.rollout is not None
    second.rollout.end("it is worse: " + "ä" * 500)
    await office.until(lambda: first.rollout is not None and not first.rollout.running)
    await office.until(office.all_agree)
    assert (await office.begin(3)).orders() == second.orders()
    await office.until(office.all_agree)


async def test_a_roll_back_at_two_at_once_ends_with_one_reason(office: Office) -> None:
    first, second = await office.begin(0), await office.begin(1)
    first.roll_out(RolloutOrder("random", 0.05, By.REQUEST))
    await office.until(lambda: office.board.orders.rollout is not None and office.all_agree())
    for one, reason in ((first, "mine"), (second, "yours")):
        assert one.rollout is not None
        one.rollout.end(reason)
    await office.until(lambda: office.board.orders.rollout != RolloutOrder("random", 0.05, By.REQUEST))
    await office.until(office.all_agree)


def _said(routing: str) -> Orders:
    return configured_orders(load_text(f"routing: {{{routing}}}", "c.yaml", ConfigTree))


KV, RANDOM = RolloutOrder("kv", 0.05, By.REQUEST), RolloutOrder("random", 0.5, By.REQUEST)


@pytest.mark.parametrize(
    ("by_hand", "new", "after"),
    [
        (Orders("random", KV), "policy: prefix, rollout: {policy: kv}", Orders("random", KV)),
        (Orders("random"), "policy: prefix, rollout: {policy: kv}", Orders("random")),
        (Orders("random"), "policy: prefix", Orders("random")),
        (Orders("prefix", RANDOM), "policy: cost, rollout: {policy: kv}", Orders("cost", RANDOM)),
        (Orders("prefix", RANDOM), "policy: random, rollout: {policy: kv}", Orders("random")),
        (Orders("kv"), "policy: prefix, rollout: {policy: random, share: 50%}", Orders("kv", RANDOM)),
        (Orders("kv", RolloutOrder("cost", 0.1, By.REQUEST)), "policy: auto, rollout: {policy: kv}", Orders("auto")),
    ],
)
def test_what_the_file_does_not_change_stays_as_it_was_set_by_hand(by_hand: Orders, new: str, after: Orders) -> None:
    old = _said("policy: prefix, rollout: {policy: kv}")
    assert old == Orders("prefix", KV)
    assert by_hand.after(old, _said(new)) == after
