"""The runner: bounded, never two to one worker, nothing left behind."""

from __future__ import annotations

import asyncio
import random

import pytest

from pointsman.core.ledger.events import CanaryRead, CanaryResult, CanarySent
from pointsman.core.ledger.health.canaries import CanaryDue
from pointsman.core.model.worker import worker_id
from pointsman.edge.cluster import canaries as room
from pointsman.edge.cluster.canaries import MOST_IDLE, Canaries
from pointsman.edge.cluster.canary import CanaryOutcome, CanaryTarget
from support.waiting import eventually


class Bench:
    """Canaries that go on until a test lets them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.due: list[CanaryDue] = []
        self.events: list[CanarySent | CanaryRead] = []
        self.go = asyncio.Event()
        self.outcome = CanaryOutcome(CanaryResult.PASSED, "2 events in 40 ms", 40.0)
        self.fails: Exception | None = None
        self.target: CanaryTarget | None = CanaryTarget(None, "vllm", "m")  # type: ignore[arg-type]
        monkeypatch.setattr(room, "send_canary", self.send)
        self.canaries = Canaries(
            lambda at_ms: self.due,
            lambda worker: self.target,
            self.events.append,
            lambda: 5_000.0,
            random.Random(1),
            limit_s=10.0,
            spread_s=0.0,
        )

    async def send(self, target: CanaryTarget, limit_s: float, now_ms: object) -> CanaryOutcome:
        assert limit_s == 10.0
        if self.fails is not None:
            raise self.fails
        await self.go.wait()
        return self.outcome

    def kinds(self) -> list[tuple[str, str]]:
        return [(type(event).__name__, event.worker) for event in self.events]


@pytest.fixture
async def bench(monkeypatch):
    made = Bench(monkeypatch)
    yield made
    await made.canaries.close()


def due(name: str, *, urgent: bool = True) -> CanaryDue:
    return CanaryDue(worker_id(name), urgent)


async def test_sent_and_told(bench) -> None:
    bench.due = [due("a")]
    bench.canaries.look()
    await eventually(lambda: bench.kinds() == [("CanarySent", "a/0")])
    bench.canaries.look()
    await asyncio.sleep(0)
    bench.go.set()
    await eventually(lambda: len(bench.events) == 2)
    assert bench.events[1] == CanaryRead(
        worker_id("a"), 5_000.0, 5_000.0, CanaryResult.PASSED, "2 events in 40 ms", 40.0
    )


async def test_idle_ones_are_few_at_once_and_do_not_hold_up_those_in_doubt(bench) -> None:
    bench.due = [due(f"idle{n}", urgent=False) for n in range(20)] + [due("doubt")]
    bench.canaries.look()
    await eventually(lambda: ("CanarySent", "doubt/0") in bench.kinds())
    assert len(bench.events) == MOST_IDLE + 1


async def test_a_worker_that_is_gone_gets_none(bench) -> None:
    bench.target = None
    bench.due = [due("a")]
    bench.canaries.look()
    await eventually(lambda: not bench.canaries._tasks)
    assert bench.events == []


async def test_what_nobody_expected_says_nothing_of_the_worker(bench, caplog) -> None:
    bench.fails = RuntimeError("a bug")
    bench.due = [due("a")]
    bench.canaries.look()
    await eventually(lambda: len(bench.events) == 2)
    assert bench.events[1].result is CanaryResult.BUSY
    assert "nobody expected" in caplog.text


async def test_closed_it_leaves_nothing_behind_and_sends_no_more(bench) -> None:
    bench.due = [due("a"), due("b", urgent=False)]
    bench.canaries.look()
    await eventually(lambda: len(bench.events) == 2)
    await bench.canaries.close()
    bench.canaries.look()
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("canary")]
    assert len(bench.events) == 2
