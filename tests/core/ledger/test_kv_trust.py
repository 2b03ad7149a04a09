"""KV that keeps being of no use is left alone for a while."""

from __future__ import annotations

import pytest

from pointsman.core.ledger.events import (
    Admitted,
    Dispatched,
    Finished,
    FirstToken,
    HealthRead,
    PrefillEnded,
    PrefillFailed,
    PrefillLeg,
    Tick,
    WorkerJoined,
)
from pointsman.core.ledger.kv_trust import APART_MS, COOL_OFF_MS, FAILURES, MOST_COOL_OFF_MS
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.kv_shape import HandShake, KvShape
from pointsman.core.model.request import Request
from pointsman.core.model.view import KV_GIVES, KV_PARTS, KV_TAKES, Column
from pointsman.core.model.worker import WorkerId, WorkerSpec

P, D, E = WorkerId("p/0"), WorkerId("d/0"), WorkerId("e/0")
ALL = KV_GIVES + KV_TAKES + KV_PARTS


class Scene:
    def __init__(self, **shape: bool) -> None:
        self.ledger, self.now_ms, self._number = Ledger(), 0.0, 0
        kv = KvShape(HandShake.BLOCKS, parts=True, **shape)
        for worker in (P, D, E):
            self.ledger.apply(WorkerJoined(WorkerSpec(worker, f"http://{worker[0]}:1", "vllm", ("m",), kv=kv), 0.0))
            self.ledger.apply(HealthRead(worker, 0.0, True, True, "ready"))

    def sides(self, worker: WorkerId) -> int:
        view = self.ledger.view(Request("v", "m", 0.0, 10))
        return int(view.table[Column.KV_SIDES, view.workers.index(worker)])

    def wait(self, ms: float) -> None:
        self.now_ms += ms
        self.ledger.apply(Tick(self.now_ms))

    def transfer(self, *, works: bool, at: WorkerId = D, ended: bool = True, no_kv: bool = True) -> None:
        self._number += 1
        name, now_ms = f"r{self._number}", self.now_ms
        self.ledger.apply(Admitted(Request(name, "m", now_ms, 100), now_ms))
        self.ledger.apply(Dispatched(name, at, now_ms, prefill=PrefillLeg(P)))
        if ended:
            self.ledger.apply(PrefillEnded(name, now_ms))
        if not works:
            self.ledger.apply(PrefillFailed(name, now_ms, "of no use", no_kv=no_kv))
        self.ledger.apply(FirstToken(name, now_ms))
        self.ledger.apply(Finished(name, now_ms, 100, None, 1))


def failing(scene: Scene, times: int = FAILURES, **how: bool) -> None:
    for _ in range(times):
        scene.wait(APART_MS)
        scene.transfer(works=False, **how)


@pytest.mark.parametrize("ended", [True, False])
def test_three_in_a_row_are_enough_and_it_comes_back(ended: bool) -> None:
    scene = Scene()
    failing(scene, FAILURES - 1, ended=ended)
    assert scene.sides(P) == scene.sides(D) == ALL
    failing(scene, 1, ended=ended)
    assert (scene.sides(P), scene.sides(D), scene.sides(E)) == (KV_TAKES, KV_GIVES, ALL)
    changes = scene.ledger.take_kv_changes()
    assert [(one.worker, one.gives, one.off_ms) for one in changes] == [(P, True, COOL_OFF_MS), (D, False, COOL_OFF_MS)]
    assert scene.ledger.take_kv_changes() == ()
    scene.wait(COOL_OFF_MS - 1)
    assert scene.sides(P) == KV_TAKES
    scene.wait(1)
    assert scene.sides(P) == scene.sides(D) == ALL
    assert [one.off_ms for one in scene.ledger.take_kv_changes()] == [None, None]


def test_the_first_try_after_it_decides_and_the_pause_doubles_up_to_a_bound() -> None:
    scene = Scene()
    failing(scene)
    pauses = []
    for _ in range(8):
        scene.wait(MOST_COOL_OFF_MS)
        assert scene.sides(D) == ALL
        scene.ledger.take_kv_changes()
        scene.transfer(works=False)
        pauses += [one.off_ms for one in scene.ledger.take_kv_changes() if one.worker == D]
    assert pauses[:2] == [2 * COOL_OFF_MS, 4 * COOL_OFF_MS]
    assert pauses[-1] == MOST_COOL_OFF_MS
    scene.wait(MOST_COOL_OFF_MS)
    scene.transfer(works=True)
    failing(scene, FAILURES - 1)
    assert scene.sides(D) == ALL, "one that works clears it"


def test_failures_at_one_moment_are_one() -> None:
    scene = Scene()
    scene.wait(APART_MS)
    for _ in range(10):
        scene.transfer(works=False)
    assert scene.sides(P) == scene.sides(D) == ALL


def test_who_works_with_others_is_not_left_alone() -> None:
    scene = Scene()
    for _ in range(4):
        failing(scene, 1)
        scene.transfer(works=True, at=E)
    assert scene.sides(P) == ALL
    assert scene.sides(D) == KV_GIVES


def test_what_is_somebodys_fault_counts_there_alone() -> None:
    scene = Scene()
    failing(scene, 5, no_kv=False)
    assert scene.sides(P) == scene.sides(D) == ALL


def test_engines_that_serve_only_halves_are_not_left_alone() -> None:
    scene = Scene(alone=False)
    failing(scene, 5)
    assert scene.sides(P) == scene.sides(D) == ALL
