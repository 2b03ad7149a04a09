"""Accounts: what is refused and why, how estimates are settled, and that at rest nothing is held."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pointsman.core.limits.account import Account
from pointsman.core.limits.limits import Kind, Limits


def test_each_limit_refuses_by_its_own_name_and_says_when() -> None:
    account = Account("t:a", Limits(60, 600, 2), 0.0)
    for _ in range(2):
        assert account.refusal(100, 0.0) is None
        account.begin(100, 0.0)
    busy = account.refusal(100, 0.0)
    assert busy is not None
    assert (busy.kind, busy.limit, busy.wait_ms) == (Kind.CONCURRENCY, 2, None)
    account.end(100, 100, 0.0)
    full = account.refusal(500, 0.0)
    assert full is not None
    assert (full.subject, full.kind, full.limit, full.wait_ms) == ("t:a", Kind.TOKENS, 600, 10_000)
    assert account.refusal(500, 10_000.0) is None


def test_the_longer_wait_is_the_one_that_is_told() -> None:
    account = Account("t:a", Limits(6, 60_000), 0.0)
    for _ in range(6):
        account.begin(10_000, 0.0)
    refusal = account.refusal(1000, 0.0)
    assert refusal is not None
    assert (refusal.kind, refusal.wait_ms) == (Kind.REQUESTS, 10_000)


def test_an_estimate_is_settled_with_what_it_came_to() -> None:
    account = Account("t:a", Limits(None, 600), 0.0)
    account.begin(500, 0.0)
    assert account.levels(0.0) == (None, 100)
    account.end(500, 30, 0.0)
    assert account.levels(0.0) == (None, 570)
    account.begin(10, 0.0)
    account.end(10, 900, 0.0)
    assert account.levels(0.0) == (None, -330)


def test_what_never_reached_an_engine_costs_nothing() -> None:
    account = Account("t:a", Limits(2, 600, 1), 0.0)
    account.begin(500, 0.0)
    account.end(500, 0, 0.0, counts=False)
    assert account.levels(0.0) == (2, 600)
    assert (account.own.requests, account.own.tokens, account.own.reserved, account.running) == (0, 0, 0, 0)


@pytest.mark.parametrize(("before", "after", "left"), [(600, 1200, 1100), (600, 60, -40), (600, None, None)])
def test_other_limits_keep_what_was_used(before, after, left) -> None:
    account = Account("t:a", Limits(None, before), 0.0)
    account.begin(100, 0.0)
    account.change(Limits(None, after), 0.0)
    assert account.levels(0.0)[1] == left
    account.end(100, 100, 0.0)
    assert account.running == 0


class Requests(RuleBasedStateMachine):
    """Requests begin when they may, and end in every way; what passed is compared with plain arithmetic."""

    limits = Limits(30, 3000, 5, 20.0)

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.account = Account("t:a", self.limits, 0.0)
        self.running: list[float] = []
        self.begun: list[float] = []

    @rule(ms=st.floats(0, 60_000))
    def wait(self, ms: float) -> None:
        self.now += ms

    @rule(tokens=st.integers(1, 1000))
    def ask(self, tokens: int) -> None:
        if self.account.refusal(tokens, self.now) is None:
            self.account.begin(tokens, self.now)
            self.running.append(tokens)
            self.begun.append(self.now)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 10), used=st.integers(0, 2000))
    def end(self, which: int, used: int) -> None:
        reserved = self.running.pop(which % len(self.running))
        self.account.end(reserved, used, self.now)

    @invariant()
    def holds(self) -> None:
        account = self.account
        assert account.running == len(self.running) <= 5
        assert account.own.reserved == pytest.approx(sum(self.running))
        for first, at in enumerate(self.begun):
            assert len(self.begun) - first <= 10 + (self.now - at) * 30 / 60_000 + 1e-6

    def teardown(self) -> None:
        for reserved in self.running:
            self.account.end(reserved, 0, self.now)
        assert (self.account.running, self.account.own.reserved) == (0, 0)


TestRequests = Requests.TestCase
TestRequests.settings = settings(max_examples=60, stateful_step_count=40)
