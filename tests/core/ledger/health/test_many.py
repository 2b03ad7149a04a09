"""A thousand workers: what one tick, and one change, looks at is bounded."""

from __future__ import annotations

import random

import pytest

from pointsman.core.ledger import events as ev
from pointsman.core.ledger import step_times
from pointsman.core.ledger.health.quota import allowed_out
from pointsman.core.ledger.health.review import Review
from pointsman.core.ledger.watch import Watch
from pointsman.core.model.fault import Fault
from pointsman.core.model.view import Exclusion


@pytest.fixture
def looks(monkeypatch) -> list[float]:
    """Times at which somebody looked over all workers."""
    found: list[float] = []
    real = Review.look

    def look(self: Review, most_out: float, at_ms: float) -> None:
        found.append(at_ms)
        real(self, most_out, at_ms)

    monkeypatch.setattr(Review, "look", look)
    return found


def test_many_that_are_left_out_at_once_are_looked_over_once(scene_of, looks) -> None:
    scene = scene_of(*(f"e{number}" for number in range(60)))
    for name in scene.engines:
        scene.stream(name, 3)
    scene.wait(10)
    for name in list(scene.engines)[:25]:  # less than half: their like flows
        scene.engines[name].itl_ms = None
    scene.wait(12)
    assert len(scene.usable()) == 35
    assert not looks  # no share was reached: nobody else is concerned


def test_pauses_of_many_concern_nobody_while_others_take_requests(scene_of, looks) -> None:
    scene = scene_of(*(f"e{number}" for number in range(20)))
    names = list(scene.engines)
    for name in names[:-1]:
        scene.fail(name, Fault.OVERLOADED)
    assert not looks
    assert scene.usable() == names[-1:]
    scene.fail(names[-1], Fault.OVERLOADED)
    assert len(looks) == 1
    assert scene.usable() == names  # all of them paused: to be refused costs less than not to ask


def test_what_is_counted_a_change_is_what_a_look_over_all_would_find(scene_of) -> None:
    """In any order: no more than the share is left out, one stays, and who is kept is kept for a reason."""
    rng = random.Random(5)
    scene = scene_of(*"abcdef", canary=False, outliers=False)
    for _ in range(400):
        name = rng.choice(list(scene.engines))
        what = rng.random()
        if what < 0.5:
            for _ in range(5):
                scene.fail(name, Fault.SERVER_ERROR)
        elif what < 0.6:
            scene.fail(name, Fault.OVERLOADED)
        elif what < 0.75:
            scene.engines[name].answers = not scene.engines[name].answers
        elif what < 0.8:
            scene.ledger.apply(ev.WorkerDraining(scene.engines[name].id, scene.now_ms, "test"))
        elif what < 0.85:
            scene.ledger.apply(ev.WorkerResumed(scene.engines[name].id, scene.now_ms))
        else:
            scene.wait(rng.choice((1, 7, 30)))
        entries = {n: scene.ledger._fleet.entry(e.id) for n, e in scene.engines.items()}
        could = [n for n, e in entries.items() if e.health.usable_by_probes and e.draining is None]
        out = [n for n in could if entries[n].health.standing.left_out]
        kept = {n for n, e in entries.items() if e.health.kept}
        assert kept <= set(out)
        assert len(kept) == max(0, len(out) - allowed_out(len(could), 0.5))
        if could:
            assert [n for n in could if scene.exclusion(n) is Exclusion.NONE or entries[n].health.door_open]


def test_a_tick_looks_at_a_bounded_part_of_what_happened_and_comes_to_everybody(scene_of, monkeypatch) -> None:
    monkeypatch.setattr(step_times, "_IN_TURN_EVENTS", 64)
    monkeypatch.setattr(step_times, "_SETTLED", 0.0)
    scene = scene_of(*(f"e{number}" for number in range(40)), outliers=False)
    replayed: list[int] = []
    real = Watch.replay

    def replay(self, limit, *args):  # type: ignore[no-untyped-def]
        replayed[-1] += min(limit, self.kept)
        return real(self, limit, *args)

    monkeypatch.setattr(Watch, "replay", replay)
    for name in scene.engines:
        scene.serve(name, 10)  # 30 events each
    for _ in range(30):
        replayed.append(0)
        scene.wait(1)
    assert sum(replayed) == 40 * 30
    assert max(replayed) <= 64 + 30
