"""An engine's way in and out: what it says to whom, in which order."""

from __future__ import annotations

import asyncio
import json

import pytest

from pointsman.edge.cluster.join.joining import Joining, JoinRecord

RECORD = JoinRecord("a", "http://a:1", {"kind": "vllm"})


class Engine:
    def __init__(self, log: list[str]) -> None:
        self._log = log
        self.in_flight = 0

    def unready(self) -> None:
        self._log.append("unready")

    def refuse(self) -> None:
        self._log.append("refuse")


class Joiner:
    def __init__(self, log: list[str]) -> None:
        self._log = log
        self.running = False
        self.stuck = False

    async def run(self) -> None:
        self._log.append("register")
        self.running = True
        try:
            await asyncio.Event().wait()
        finally:
            self.running = False

    async def say(self, record: bytes) -> None:
        if self.stuck:
            await asyncio.Event().wait()
        self._log.append(f"say {json.loads(record)['draining']}")

    async def leave(self) -> None:
        self._log.append("leave")


class Stage:
    def __init__(self) -> None:
        self.log: list[str] = []
        self.engine = Engine(self.log)
        self.joiner = Joiner(self.log)
        self.joining = Joining(self.engine, RECORD, [self.joiner], lag_s=0.01)
        self.ready = True

    async def is_ready(self) -> bool:
        return self.ready

    def start(self) -> asyncio.Task[None]:
        return asyncio.create_task(self.joining.run(self.is_ready))

    async def until(self, entry: str) -> None:
        async with asyncio.timeout(8):
            while entry not in self.log:
                await asyncio.sleep(0.001)


@pytest.fixture
async def stage() -> Stage:
    return Stage()


async def test_registered_once_it_is_ready_and_no_sooner(stage: Stage) -> None:
    stage.ready = False
    task = stage.start()
    await asyncio.sleep(0.12)
    assert stage.log == []
    stage.ready = True
    await stage.until("register")
    await stage.joining.leave(10.0, "SIGTERM")
    assert stage.log == ["register", "unready", "say SIGTERM", "refuse", "leave"]
    await asyncio.gather(task, return_exceptions=True)


async def test_what_runs_may_end_and_it_stays_registered_meanwhile(stage: Stage) -> None:
    task = stage.start()
    await stage.until("register")
    stage.engine.in_flight = 2
    leaving = asyncio.create_task(stage.joining.leave(1000.0, "SIGTERM"))
    await stage.until("refuse")
    await asyncio.sleep(0.12)
    assert stage.joiner.running
    assert "leave" not in stage.log
    stage.engine.in_flight = 0
    await leaving
    assert stage.log[-1] == "leave"
    assert not stage.joiner.running
    await asyncio.gather(task, return_exceptions=True)


async def test_the_grace_ends(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    task = stage.start()
    await stage.until("register")
    stage.engine.in_flight = 2
    await stage.joining.leave(0.05, "SIGTERM")
    assert "2 requests are cut" in caplog.text
    assert stage.log[-1] == "leave"
    await asyncio.gather(task, return_exceptions=True)


async def test_a_second_signal_hurries_it(stage: Stage) -> None:
    task = stage.start()
    await stage.until("register")
    stage.engine.in_flight = 2
    leaving = asyncio.create_task(stage.joining.leave(1000.0, "SIGTERM"))
    await stage.until("refuse")
    stage.joining.hurry()
    await leaving
    assert stage.log[-1] == "leave"
    await asyncio.gather(task, return_exceptions=True)


async def test_told_to_stop_before_it_was_ready(stage: Stage) -> None:
    stage.ready = False
    task = stage.start()
    await asyncio.sleep(0)
    await stage.joining.leave(10.0, "SIGTERM")
    await task
    assert stage.log == ["unready", "refuse"]  # nobody heard of it, so nobody has to be told


async def test_who_can_not_be_told_does_not_hold_it_up(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pointsman.edge.cluster.join.joining._TOLD_S", 0.02)
    task = stage.start()
    await stage.until("register")
    stage.joiner.stuck = True
    await stage.joining.leave(10.0, "SIGTERM")
    assert stage.log[-2:] == ["refuse", "leave"]
    assert "not everybody could be told" in caplog.text
    await asyncio.gather(task, return_exceptions=True)


def test_the_record() -> None:
    assert json.loads(RECORD.encoded()) == {"name": "a", "url": "http://a:1", "kind": "vllm"}
    assert json.loads(RECORD.encoded("x"))["draining"] == "x"
