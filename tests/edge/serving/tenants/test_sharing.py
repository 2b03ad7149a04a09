"""Replicas share limits over the bus: sums hold, the dead free what they held, rubbish harms nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from pointsman.core.ledger.ledger import Ledger
from pointsman.edge.configuration.loader import load_text
from pointsman.edge.configuration.tenants import Tenants
from pointsman.edge.serving.tenants.sharing import TOPIC
from pointsman.edge.serving.tenants.tenancy import Tenancy, TenancySettings


class MemoryBus:
    """Of one front end among those in `others`; `lossy` says what gets lost."""

    def __init__(self, replica: str, others: list[MemoryBus]) -> None:
        self.replica = replica
        self.others = others
        others.append(self)
        self.lossy: Callable[[], bool] = lambda: False
        self.hears: tuple = ()
        self.sent: list[bytes] = []

    def publish(self, topic: str, payload: bytes) -> None:
        assert topic == TOPIC
        self.sent.append(payload)
        for other in self.others:
            if other is not self and not self.lossy():
                other.hears[0](self.replica, payload)

    def subscribe(self, topic, heard, gone, whole) -> None:
        self.hears = (heard, gone, whole)

    def greet(self, other: MemoryBus) -> None:
        """As the bus does for a newcomer."""
        payload = self.hears[2]()
        if payload is not None:
            other.hears[0](self.replica, payload)


class Replica:
    def __init__(self, name: str, buses: list[MemoryBus], text: str) -> None:
        self.now_ms = 0.0
        self.bus = MemoryBus(name, buses)
        settings = TenancySettings(None, load_text(text, "t.yaml", Tenants))
        self.tenancy = Tenancy(settings, Ledger(), self.bus, lambda: self.now_ms)
        self.begun: list = []

    def ask(self, tokens: float = 10) -> bool:
        book = self.tenancy.book
        account = book.account("tenant:acme", 0.0)
        assert account is not None
        if book.refusal((account,), tokens, 0.0) is not None:
            return False
        book.begin((account,), tokens, 0.0)
        self.tenancy.gate.changed()
        self.begun.append((account, tokens))
        return True

    def end(self, used: float) -> None:
        account, tokens = self.begun.pop()
        self.tenancy.book.end((account,), tokens, used, 0.0)
        self.tenancy.gate.changed()

    @property
    def account(self):
        return self.tenancy.book.account("tenant:acme", 0.0)


async def told() -> None:
    await asyncio.sleep(0.05)


@pytest.fixture
async def replicas():
    buses: list[MemoryBus] = []
    made = [Replica(name, buses, "default: {concurrency: 3, tokens_per_minute: 1000}") for name in "abc"]
    for one in buses:
        for other in buses:
            if one is not other:
                one.greet(other)
    return made


async def test_the_sum_holds_and_is_freed_everywhere(replicas) -> None:
    a, b, c = replicas
    assert a.ask(100)
    assert b.ask(100)
    await told()
    assert c.ask(100)
    await told()
    assert not any(each.ask() for each in replicas)
    assert {each.account.running for each in replicas} == {3}
    assert {each.account.levels(0.0)[1] for each in replicas} == {700}
    b.end(500)
    await told()
    assert {each.account.running for each in replicas} == {2}
    assert {each.account.levels(0.0)[1] for each in replicas} == {300}
    assert a.ask(10)


async def test_many_changes_go_out_in_one_message(replicas) -> None:
    a = replicas[0]
    for _ in range(3):
        a.ask(1)
        a.end(1)
    await told()
    assert len(a.bus.sent) == 1
    await told()
    assert len(a.bus.sent) == 1


async def test_a_lost_word_is_made_good_by_the_next_look(replicas) -> None:
    a, b, _ = replicas
    a.bus.lossy = lambda: True
    a.ask(100)
    await told()
    assert b.account.running == 0
    a.bus.lossy = lambda: False
    a.tenancy.look()
    assert b.account.running == 1


async def test_a_lost_end_holds_no_place_for_ever() -> None:
    buses: list[MemoryBus] = []
    a, b = [Replica(name, buses, "default: {concurrency: 1}") for name in "ab"]
    a.bus.greet(b.bus)
    assert a.ask()
    await told()
    assert not b.ask()
    a.bus.lossy = lambda: True
    a.end(5)
    await told()
    a.bus.lossy = lambda: False
    a.tenancy.look()
    assert b.ask()


async def test_the_dead_free_what_they_held(replicas) -> None:
    a, b, c = replicas
    for _ in range(3):
        a.ask(100)
    await told()
    assert not b.ask()
    for each in (b, c):
        each.bus.hears[1]("a")
    assert {each.account.running for each in (b, c)} == {0}
    assert b.ask()


async def test_a_newcomer_knows_what_was_used(replicas) -> None:
    a = replicas[0]
    a.ask(900)
    await told()
    late = Replica("d", a.bus.others, "default: {concurrency: 3, tokens_per_minute: 1000}")
    a.bus.greet(late.bus)
    assert late.account.running == 1
    assert late.account.levels(0.0)[1] == 100


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"rubbish",
        msgspec.msgpack.encode([["tenant:acme"]]),
        msgspec.msgpack.encode([["tenant:acme", -5, 0.0, 0.0, 1, None, None]]),
        msgspec.msgpack.encode([["tenant:acme", 1, float("nan"), 0.0, 1, None, None]]),
        msgspec.msgpack.encode([["tenant:acme", 1, 0.0, 1e300, 1, None, None]]),
        msgspec.msgpack.encode([["tenant:acme", 1, 0.0, 0.0, 1, None, float("-inf")]]),
        b"\x91" * 5000,
    ],
)
async def test_what_can_not_be_read_is_counted_and_changes_nothing(replicas, payload, caplog) -> None:
    a = replicas[0]
    for _ in range(2):
        a.bus.hears[0]("x", payload)
    assert a.tenancy.counts.unreadable == 2
    assert caplog.text.count("can't be read") == 1
    assert a.account.running == 0
    assert a.account.levels(0.0)[1] == 1000


async def test_a_subject_without_limits_here_is_left_out(replicas) -> None:
    a = replicas[0]
    a.bus.hears[0](
        "x", msgspec.msgpack.encode([["key:k9", 1, 1.0, 1.0, 1, None, None], ["", 1, 1.0, 1.0, 1, None, None]])
    )
    assert len(a.tenancy.book) == 0
