"""Drains of engines: no new work at once, then grace, moving, cutting; only who began them undoes them."""

from __future__ import annotations

import pytest

from pointsman.core.ledger.events import (
    Admitted,
    Dispatched,
    Failed,
    Finished,
    HealthRead,
    WorkerJoined,
    WorkerLeft,
)
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.request import Request
from pointsman.core.model.view import Column, Exclusion
from pointsman.core.model.worker import Role, WorkerId, WorkerSpec
from pointsman.edge.serving.drains import Drains, Phase, UnknownEngineError


class Movers:
    """Notes what it is asked; `movable` requests go on elsewhere at once."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.asked: list[tuple[str, str, str]] = []
        self.movable: set[str] = set()
        self.there: dict[str, list[str]] = {}

    def migrate_from(self, worker: WorkerId, reason: str) -> int:
        self.asked.append(("migrate", worker, reason))
        moving = [request for request in self.there[worker] if request in self.movable]
        for request in moving:
            self.there[worker].remove(request)
            self.ledger.apply(Failed(request, 0.0, "moved"))
        return len(moving)

    def cut(self, worker: WorkerId, reason: str) -> int:
        self.asked.append(("cut", worker, reason))
        cut, self.there[worker] = self.there[worker], []
        for request in cut:
            self.ledger.apply(Failed(request, 0.0, "cut"))
        return len(cut)


class World:
    def __init__(self) -> None:
        self.now_ms = 1000.0
        self.ledger = Ledger()
        self.movers = Movers(self.ledger)
        self.names = ["a", "b"]
        self.drains = Drains(
            self.ledger,
            self.ledger.apply,
            self.movers,
            lambda: self.names,
            lambda: self.now_ms,
            grace_s=600,
            cut_after_s=30,
        )

    def join(self, worker: str, role: Role = Role.BOTH) -> None:
        spec = WorkerSpec(WorkerId(worker), "http://x", "vllm", ("m",), role=role)
        self.ledger.apply(WorkerJoined(spec, self.now_ms))
        self.drains.joined(spec)
        self.probe(worker)

    def probe(self, worker: str, *, reachable: bool = True) -> None:
        self.ledger.apply(HealthRead(WorkerId(worker), self.now_ms, reachable, reachable, "probe"))

    def send(self, request_id: str, worker: str) -> None:
        self.ledger.apply(Admitted(request(request_id), self.now_ms))
        self.ledger.apply(Dispatched(request_id, WorkerId(worker), self.now_ms))
        self.movers.there.setdefault(worker, []).append(request_id)

    def finish(self, request_id: str, worker: str) -> None:
        self.ledger.apply(Finished(request_id, self.now_ms))
        self.movers.there[worker].remove(request_id)

    def excluded(self) -> dict[str, Exclusion]:
        view = self.ledger.view(request("look"))
        codes = view.column(Column.EXCLUSION)
        return {str(w): Exclusion(int(c)) for w, c in zip(view.workers, codes, strict=True)}

    def after(self, seconds: float) -> None:
        self.now_ms += 1000 * seconds
        self.drains.look()


def request(request_id: str) -> Request:
    return Request(request_id, "m", 0.0, 75)


@pytest.fixture
def world() -> World:
    world = World()
    for worker in ("a/0", "a/1", "b/0"):
        world.join(worker)
    return world


def test_no_new_work_at_once_for_any_of_its_ranks(world: World) -> None:
    world.drains.begin("a", "scaled in")
    assert world.excluded() == {"a/0": Exclusion.DRAINING, "a/1": Exclusion.DRAINING, "b/0": Exclusion.NONE}
    assert [w.reason for w in world.ledger.snapshot().workers if w.id == "a/0"] == ["scaled in"]


def test_what_ends_within_the_grace_is_left_alone(world: World) -> None:
    world.send("r1", "a/0")
    done: list[str] = []
    drain = world.drains.begin("a", "scaled in", then=lambda: done.append("gone"))
    assert (drain.phase, done) == (Phase.FINISHING, [])
    world.after(599)
    world.finish("r1", "a/0")
    world.after(1)
    assert (drain.phase, done, world.movers.asked) == (Phase.DRAINED, ["gone"], [])
    world.after(1)
    assert done == ["gone"]


def test_after_the_grace_requests_are_moved_and_after_that_cut(world: World) -> None:
    for name, worker in (("r1", "a/0"), ("r2", "a/0"), ("r3", "b/0")):
        world.send(name, worker)
    world.movers.movable = {"r1"}
    drain = world.drains.begin("a", "scaled in")
    world.after(600)
    assert world.movers.asked == [("migrate", "a/0", "its engine drains: scaled in")]
    assert (drain.phase, world.drains.in_flight("a")) == (Phase.MIGRATING, 1)
    world.after(29)
    assert {asked[0] for asked in world.movers.asked} == {"migrate"}
    world.after(1)
    assert [asked for asked in world.movers.asked if asked[0] != "migrate"] == [
        ("cut", "a/0", "its engine drains: scaled in")
    ]
    world.after(1)
    assert drain.phase is Phase.DRAINED
    assert world.drains.requests == {"migrated": 1, "cut": 1}
    assert world.ledger.holds("r3")


def test_what_could_not_move_at_first_does_once_another_engine_is_there(world: World) -> None:
    world.send("r1", "a/0")
    drain = world.drains.begin("a", "scaled in")
    world.after(600)
    world.after(10)
    assert (drain.phase, world.drains.in_flight("a")) == (Phase.MIGRATING, 1)
    world.movers.movable = {"r1"}  # the other one is well again
    world.after(1)
    world.after(1)
    assert drain.phase is Phase.DRAINED
    assert world.drains.requests == {"migrated": 1}


def test_nothing_there_is_drained_at_once(world: World) -> None:
    done: list[str] = []
    assert world.drains.begin("a", "x", then=lambda: done.append("gone")).phase is Phase.DRAINED
    assert done == ["gone"]


def test_without_a_grace_requests_move_at_once(world: World) -> None:
    world.send("r1", "a/1")
    assert world.drains.begin("a", "now", grace_s=0).phase is Phase.MIGRATING
    assert world.movers.asked[0][:2] == ("migrate", "a/1")


def test_asked_again_the_earlier_end_counts(world: World) -> None:
    world.send("r1", "a/0")
    drain = world.drains.begin("a", "first", grace_s=100)
    world.drains.begin("a", "second", grace_s=500)
    assert (drain.reason, drain.migrates_ms) == ("second", 101_000.0)
    world.drains.begin("a", "third", grace_s=1)
    assert drain.migrates_ms == 2000.0


def test_probes_that_fail_and_come_back_undo_nothing(world: World) -> None:
    world.drains.begin("a", "scaled in")
    for _ in range(5):
        world.probe("a/0", reachable=False)
    assert world.excluded()["a/0"] is not Exclusion.NONE
    world.probe("a/0")
    assert world.excluded()["a/0"] is Exclusion.DRAINING


def test_a_restarted_engine_and_a_new_rank_of_it_drain_too(world: World) -> None:
    world.drains.begin("a", "maintenance")
    world.join("a/0")
    world.join("a/7")
    assert {world.excluded()[worker] for worker in ("a/0", "a/7")} == {Exclusion.DRAINING}


def test_an_engine_that_never_answered_drains_when_it_does(world: World) -> None:
    world.names.append("late")
    assert world.drains.begin("late", "not yet").phase is Phase.DRAINED
    world.join("late/0")
    assert world.excluded()["late/0"] is Exclusion.DRAINING


def test_resumed_it_gets_work_and_what_was_to_follow_does_not(world: World) -> None:
    done: list[str] = []
    world.send("r1", "a/0")
    world.drains.begin("a", "scaled in", then=lambda: done.append("gone"))
    world.drains.resume("a")
    assert world.excluded()["a/0"] is Exclusion.NONE
    world.finish("r1", "a/0")
    world.after(10_000)
    assert (done, world.movers.asked, world.drains.all()) == ([], [], ())
    world.drains.resume("a")  # nothing to do


def test_an_unhealthy_worker_that_is_resumed_stays_out(world: World) -> None:
    world.drains.begin("a", "x")
    for _ in range(5):
        world.now_ms += 60_000
        world.probe("a/0", reachable=False)
    world.drains.resume("a")
    assert world.excluded()["a/0"] is Exclusion.UNREACHABLE


def test_unknown_names_are_refused_with_those_that_there_are(world: World) -> None:
    with pytest.raises(UnknownEngineError, match="no engine is called 'c'; there are a, b"):
        world.drains.begin("c", "x")
    with pytest.raises(UnknownEngineError, match="'c'"):
        world.drains.resume("c")


def test_a_removed_engine_is_forgotten_and_comes_back_without_its_drain(world: World) -> None:
    world.send("r1", "a/0")
    done: list[str] = []
    world.drains.begin("a", "x", then=lambda: done.append("gone"))
    for worker in ("a/0", "a/1"):
        world.ledger.apply(WorkerLeft(WorkerId(worker), world.now_ms, "removed"))
    world.names.remove("a")
    world.after(1)
    assert (world.drains.of("a"), done) == (None, ["gone"])
    world.finish("r1", "a/0")
    assert world.ledger.snapshot().running == 0
    world.names.append("a")
    world.join("a/0")
    assert world.excluded()["a/0"] is Exclusion.NONE


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
def test_one_of_a_pair_drains_for_its_own_stage_only(world: World, role: Role) -> None:
    """What runs at its partner is the partner's: it is neither moved nor cut."""
    world.names += ["p", "d"]
    world.join("p/0", Role.PREFILL)
    world.join("d/0", Role.DECODE)
    world.send("at p", "p/0")
    world.send("at d", "d/0")
    drained, partner = ("p", "d") if role is Role.PREFILL else ("d", "p")
    world.drains.begin(drained, "one of two", grace_s=0)
    assert world.excluded()[f"{drained}/0"] is Exclusion.DRAINING
    # A worker for prompts is excluded for whole requests by its role alone.
    assert world.excluded()[f"{partner}/0"] is (Exclusion.NONE if role is Role.PREFILL else Exclusion.ROLE)
    assert [asked[1] for asked in world.movers.asked] == [f"{drained}/0"]
    world.after(30)
    assert not world.ledger.holds(f"at {drained}")
    assert world.ledger.holds(f"at {partner}")
