"""The circuit breaker: what opens it, what does not, and how it closes."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pointsman.core.ledger import events as ev
from pointsman.core.ledger.events import CanaryResult
from pointsman.core.model.fault import Fault
from pointsman.core.model.view import Exclusion


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.SERVER_ERROR, Fault.ERROR_EVENT, Fault.MALFORMED, Fault.LATE])
def test_five_failures_in_a_row_open_it(scene_of, fault: Fault) -> None:
    scene = scene_of("a", "b")
    for number in range(5):
        assert scene.exclusion("a") is Exclusion.NONE, number
        scene.fail("a", fault)
    assert scene.exclusion("a") is Exclusion.FAILING
    assert scene.health("a").reason == f"5 failures in a row, the last: it was {fault}"
    assert scene.facts("a") == "yes yes no"


@pytest.mark.parametrize("fault", [Fault.OVERLOADED, Fault.CONNECT_LATE])
def test_being_busy_does_not(scene_of, fault: Fault) -> None:
    scene = scene_of("a", "b", canary=False)
    for _ in range(20):
        scene.fail("a", fault)
    assert scene.health("a").failures_in_row == 0
    assert scene.exclusion("a") is not Exclusion.FAILING


def test_what_is_not_the_workers_fault_does_not(scene_of) -> None:
    scene = scene_of("a", "b")
    for _ in range(20):
        scene.ledger.apply(ev.Failed(scene.send("a"), scene.now_ms, "the total time is over"))
        scene.ledger.apply(ev.Refused(scene.send("a"), scene.now_ms, 400))
    assert scene.exclusion("a") is Exclusion.NONE


def test_answers_between_them_keep_it_closed_until_half_fail(scene_of) -> None:
    scene = scene_of("a", "b")
    for _ in range(10):
        scene.fail("a", Fault.SERVER_ERROR)
        scene.serve("a", 3)
    assert scene.exclusion("a") is Exclusion.NONE
    for _ in range(40):
        scene.fail("a", Fault.SERVER_ERROR)
        scene.serve("a")
        if scene.exclusion("a") is Exclusion.FAILING:
            break
    assert "requests failed" in scene.health("a").reason


def test_a_canary_closes_it(scene_of) -> None:
    scene = scene_of("a", "b")
    for _ in range(5):
        scene.fail("a", Fault.SERVER_ERROR)
    assert scene.until_back("a", 30) == pytest.approx(10, abs=1)
    assert scene.facts("a") == "yes yes yes"


def test_a_canary_that_fails_keeps_it_open_for_longer(scene_of) -> None:
    scene = scene_of("a", "b")
    scene.wait(6)  # one passed
    scene.engines["a"].canary = CanaryResult.FAILED
    for _ in range(5):
        scene.fail("a", Fault.SERVER_ERROR)
    scene.wait(65)
    times = [at_ms for at_ms, worker in scene.canaries if worker == "a/0" and at_ms > 6_000]
    assert [round((later - at_ms) / 1000) for at_ms, later in pairwise(times)] == [20]
    scene.engines["a"].canary = CanaryResult.PASSED
    assert scene.until_back("a", 60) <= 41


def test_without_canaries_one_request_shows(scene_of) -> None:
    scene = scene_of("a", "b", canary=False)
    for _ in range(5):
        scene.fail("a", Fault.SERVER_ERROR)
    scene.until_back("a", 11)
    trial = scene.send("a")
    assert scene.exclusion("a") is Exclusion.FAILING  # one, not more
    scene.ledger.apply(ev.Failed(trial, scene.now_ms, "500", Fault.SERVER_ERROR))
    assert scene.until_back("a", 25) == pytest.approx(20, abs=1)
    scene.serve("a")
    assert scene.exclusion("a") is Exclusion.NONE
    assert scene.facts("a") == "yes yes yes"


@pytest.mark.parametrize("ending", [ev.Cancelled, ev.Refused, ev.AttemptFailed])
def test_a_trial_that_shows_nothing_makes_room_for_another(scene_of, ending) -> None:
    scene = scene_of("a", "b", canary=False)
    for _ in range(5):
        scene.fail("a", Fault.SERVER_ERROR)
    scene.until_back("a", 11)
    trial = scene.send("a")
    assert scene.exclusion("a") is Exclusion.FAILING
    more = {ev.Refused: (400,), ev.AttemptFailed: ("its client was moved",)}.get(ending, ())
    scene.ledger.apply(ending(trial, scene.now_ms, *more))
    assert scene.exclusion("a") is Exclusion.NONE


def test_canaries_that_nobody_sends_are_not_waited_for(scene_of) -> None:
    scene = scene_of("a", "b")
    for _ in range(5):
        scene.fail("a", Fault.SERVER_ERROR)
    scene.engines["a"].canary = None
    assert scene.until_back("a", 120) >= 10
    scene.serve("a")
    scene.wait(1)
    assert scene.exclusion("a") is Exclusion.NONE


def test_a_request_that_fails_everywhere_opens_one_breaker_at_most(scene_of) -> None:
    scene = scene_of("a", "b", "c", "d", "e", "f")
    for number in range(10):
        request_id = scene.send("a", f"poison{number}")
        for name in "bcdef":
            scene.ledger.apply(ev.AttemptFailed(request_id, scene.now_ms, "500", Fault.SERVER_ERROR))
            scene.ledger.apply(ev.Dispatched(request_id, scene.engines[name].id, scene.now_ms))
        scene.ledger.apply(ev.Failed(request_id, scene.now_ms, "500", Fault.SERVER_ERROR))
    assert scene.usable() == ["b", "c", "d", "e", "f"]


def test_the_last_one_is_never_left_out(scene_of) -> None:
    scene = scene_of("a")
    for _ in range(20):
        scene.fail("a", Fault.SERVER_ERROR)
    scene.wait(1)
    assert scene.exclusion("a") is Exclusion.NONE
    assert scene.health("a").kept
    assert [(c.what, c.state, c.cause) for c in scene.changes if c.what == "kept"] == [("kept", "yes", "quota")]
    scene.join("b")
    scene.wait(1)
    assert scene.exclusion("a") is Exclusion.FAILING


def test_more_than_half_are_never_left_out(scene_of) -> None:
    scene = scene_of(*"abcd")
    for name in "abcd":
        for _ in range(5):
            scene.fail(name, Fault.SERVER_ERROR)
        scene.wait(1)
    assert scene.usable() == ["c", "d"]


def test_one_that_becomes_unreachable_makes_room(scene_of) -> None:
    scene = scene_of(*"abc", canary=False)
    for _ in range(5):
        scene.fail("a", Fault.SERVER_ERROR)
    assert scene.usable() == ["b", "c"]
    for name in "bc":
        scene.fail(name, Fault.UNREACHABLE)
    assert scene.usable() == ["a"]


class TestOverload:
    def test_it_gets_the_pause_that_it_asked_for(self, scene_of) -> None:
        scene = scene_of("a", "b", canary=False)
        request_id = scene.send("a")
        scene.ledger.apply(ev.AttemptFailed(request_id, scene.now_ms, "429", Fault.OVERLOADED, 7_000))
        assert scene.exclusion("a") is Exclusion.PAUSED
        assert scene.until_back("a", 10) == pytest.approx(7, abs=1)

    def test_pauses_without_a_word_double_up_to_a_heartbeat(self, scene_of) -> None:
        scene = scene_of("a", "b", canary=False)
        lengths = []
        for _ in range(5):
            scene.fail("a", Fault.OVERLOADED)
            lengths.append(scene.until_back("a", 10))
        assert lengths == [1, 2, 4, 5, 5]
        scene.serve("a")
        scene.fail("a", Fault.OVERLOADED)
        assert scene.until_back("a", 10) == 1

    def test_where_all_ask_for_one_none_gets_it(self, scene_of) -> None:
        scene = scene_of("a", "b", canary=False)
        scene.fail("a", Fault.OVERLOADED)
        assert scene.usable() == ["b"]
        scene.fail("b", Fault.OVERLOADED)
        assert scene.usable() == ["a", "b"]
        scene.wait(10)
        assert scene.usable() == ["a", "b"]
        assert scene.health("a").paused_until_ms is None
