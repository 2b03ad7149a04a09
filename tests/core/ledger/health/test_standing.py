"""How long a worker is left out, and how it comes back."""

from __future__ import annotations

import pytest

from pointsman.core.ledger.health.facts import Cause
from pointsman.core.ledger.health.settings import HealthSettings
from pointsman.core.ledger.health.standing import Position, Standing

SETTINGS = HealthSettings(cool_off_ms=10_000, most_cool_off_ms=60_000)


def test_a_doubt_ends_without_a_cool_off() -> None:
    standing = Standing()
    standing.doubt(Cause.STALLED, "no token", 1_000)
    assert (standing.position, standing.left_out) == (Position.SUSPECT, False)
    standing.trust(2_000)
    assert (standing.position, standing.cause, standing.reason) == (Position.TRUSTED, None, "")
    standing.out(Cause.FAILURES, "five", 3_000, SETTINGS)
    assert standing.until_ms == 13_000


def test_the_cool_off_doubles_up_to_its_limit() -> None:
    standing, now_ms, lengths = Standing(), 0.0, []
    for _ in range(5):
        standing.out(Cause.STALLED, "no token", now_ms, SETTINGS)
        lengths.append(standing.until_ms - now_ms)
        assert not standing.cooled_off(standing.until_ms - 1)
        now_ms = standing.until_ms
        assert standing.cooled_off(now_ms)
        assert not standing.cooled_off(now_ms)
    assert lengths == [10_000, 20_000, 40_000, 60_000, 60_000]
    assert standing.position is Position.TRIAL


def test_it_begins_small_again_after_long_trust() -> None:
    standing = Standing()
    standing.out(Cause.STALLED, "no token", 0, SETTINGS)
    standing.cooled_off(10_000)
    standing.trust(10_000)
    standing.out(Cause.STALLED, "no token", 50_000, SETTINGS)
    assert standing.cool_off_ms == 20_000
    standing.cooled_off(70_000)
    standing.trust(70_000)
    standing.out(Cause.STALLED, "no token", 270_000, SETTINGS)
    assert standing.cool_off_ms == 10_000


def test_out_counts_from_the_first_time() -> None:
    standing = Standing()
    standing.out(Cause.STALLED, "no token", 5_000, SETTINGS)
    standing.cooled_off(15_000)
    standing.out(Cause.STALLED, "no token", 16_000, SETTINGS)
    assert standing.since_out_ms == 5_000


@pytest.mark.parametrize("position", [Position.OUT, Position.TRIAL])
def test_a_doubt_says_nothing_new_of_one_left_out(position: Position) -> None:
    standing = Standing()
    standing.out(Cause.FAILURES, "five", 0, SETTINGS)
    if position is Position.TRIAL:
        standing.cooled_off(10_000)
    standing.doubt(Cause.SLOW, "slow", 11_000)
    assert (standing.position, standing.cause) == (position, Cause.FAILURES)
