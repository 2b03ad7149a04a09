"""The supervisor: start, restart, stop, and what is left when something goes wrong: nothing."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing import resource_tracker
from pathlib import Path

import psutil
import pytest

from pointsman.core.model.errors import EngineError
from pointsman.edge.engines.local.fleet import EnginePlan, FleetTimes, LocalFleet, plan_engines
from pointsman.edge.engines.local.model_spec import ModelFile
from pointsman.edge.engines.local.process import EngineCommand
from pointsman.edge.engines.local.settings import LocalEngineSettings

FakeEngine = Callable[[str], Callable[[LocalEngineSettings], Sequence[str]]]
Children = Callable[[], set[int]]
TIMES = FleetTimes(ready_limit_s=20.0, first_pause_s=0.01)


def plans(count: int) -> list[EnginePlan]:
    return plan_engines([ModelFile("m/1", Path("m.gguf"), "given")], count, 8)


def below() -> set[psutil.Process]:
    """All processes below this one, but the one that Python itself keeps from the first pool of processes on."""
    found = set(psutil.Process().children(recursive=True))
    return {child for child in found if child.pid != resource_tracker._resource_tracker._pid}  # type: ignore[attr-defined]


@pytest.fixture
def children() -> Children:
    """`children()`: the processes that the test has started and that are still there; others have theirs."""
    before = below()
    return lambda: {child.pid for child in below() - before}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


def test_cores_are_split_evenly() -> None:
    files = [ModelFile("a", Path("a.gguf"), ""), ModelFile("b", Path("b.gguf"), "")]
    made = plan_engines(files, 2, 8)
    assert [plan.name for plan in made] == ["a-1", "a-2", "b-1", "b-2"]
    assert {plan.settings.threads for plan in made} == {2}
    assert {plan.settings.threads for plan in plan_engines(files, 2, 2)} == {1}


async def test_start_and_close(tmp_path: Path, fake_engine: FakeEngine, children: Children) -> None:
    ready: list[str] = []
    fleet = LocalFleet(
        plans(2), tmp_path / "logs", command=fake_engine("good"), on_ready=lambda name, url: ready.append(name)
    )
    await fleet.start()
    try:
        assert sorted(ready) == ["m/1-1", "m/1-2"]
        assert len({engine.url for engine in fleet.engines}) == 2
        assert children() >= {engine.pid for engine in fleet.engines}
        assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["m_1-1.log", "m_1-2.log"]
    finally:
        await fleet.close()
    assert not children()


async def test_a_killed_engine_comes_back_on_its_port(
    tmp_path: Path, fake_engine: FakeEngine, caplog: pytest.LogCaptureFixture, children: Children
) -> None:
    caplog.set_level(logging.WARNING, "pointsman")
    ready: list[str] = []
    fleet = LocalFleet(
        plans(2), tmp_path, command=fake_engine("good"), times=TIMES, on_ready=lambda name, url: ready.append(url)
    )
    try:
        await fleet.start()
        first, second = fleet.engines
        url, pid, other_pid = first.url, first.pid, second.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(lambda: len(ready) == 3)
        assert ready[2] == url == first.url
        assert first.pid not in (None, pid)
        assert (first.restarts, second.restarts, second.pid) == (1, 0, other_pid)
        assert "m/1-1 was killed by signal 9; starting it again" in caplog.text
    finally:
        await fleet.close()
    assert not children()


async def test_restarts_that_fail_are_tried_again(
    tmp_path: Path, fake_engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "pointsman")
    behaviours = ["good", "broken", "broken", "good"]

    def command(settings: LocalEngineSettings) -> Sequence[str]:
        return fake_engine(behaviours.pop(0))(settings)

    ready: list[str] = []
    fleet = LocalFleet(plans(1), tmp_path, command=command, times=TIMES, on_ready=lambda name, url: ready.append(url))
    try:
        await fleet.start()
        pid = fleet.engines[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGTERM)
        await until(lambda: len(ready) == 2)
        assert fleet.engines[0].restarts == 3
        assert "ended with status 1 before it was ready: the model is too heavy" in caplog.text
        pauses = [record.args[1] for record in caplog.records if isinstance(record.args, tuple)]
        assert pauses == [0.01, 0.02, 0.04]
    finally:
        await fleet.close()


async def test_one_that_cannot_start_ends_all(tmp_path: Path, fake_engine: FakeEngine, children: Children) -> None:
    def command(settings: LocalEngineSettings) -> Sequence[str]:
        return fake_engine("broken" if settings.model_name == "b" else "good")(settings)

    made = [EnginePlan(name, LocalEngineSettings(model_path="x", model_name=name)) for name in ("a", "b")]
    with pytest.raises(EngineError, match="engine b ended with status 1 before it was ready: the model is too heavy"):
        await LocalFleet(made, tmp_path, command=command).start()
    assert not children()


async def test_one_that_is_never_ready(tmp_path: Path, fake_engine: FakeEngine, children: Children) -> None:
    fleet = LocalFleet(plans(1), tmp_path, command=fake_engine("slow"), times=FleetTimes(ready_limit_s=0.2))
    with pytest.raises(EngineError, match=r"engine m/1-1 was not ready after 0 s"):
        await fleet.start()
    assert not children()


async def test_a_program_that_does_not_exist(tmp_path: Path) -> None:
    command: EngineCommand = lambda settings: ["/nowhere/engine"]  # noqa: E731
    with pytest.raises(EngineError, match="engine m/1-1 can't be started"):
        await LocalFleet(plans(1), tmp_path, command=command).start()


async def test_a_log_directory_that_cannot_be_made(tmp_path: Path, fake_engine: FakeEngine) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EngineError, match="can't be made for the engines' logs"):
        await LocalFleet(plans(1), tmp_path / "file" / "logs", command=fake_engine("good")).start()


async def test_one_that_does_not_listen_is_killed(tmp_path: Path, fake_engine: FakeEngine, children: Children) -> None:
    fleet = LocalFleet(plans(2), tmp_path, command=fake_engine("stubborn"))
    await fleet.start()
    await fleet.close(0.1)
    assert not children()


async def test_cancelled_while_starting_leaves_nothing(
    tmp_path: Path, fake_engine: FakeEngine, children: Children
) -> None:
    fleet = LocalFleet(plans(2), tmp_path, command=fake_engine("slow"))
    task = asyncio.create_task(fleet.start())
    await until(lambda: len(children()) == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await fleet.close()
    assert not children()


async def test_closed_during_the_pause_before_a_restart(
    tmp_path: Path, fake_engine: FakeEngine, children: Children
) -> None:
    fleet = LocalFleet(plans(1), tmp_path, command=fake_engine("good"), times=FleetTimes(first_pause_s=60))
    await fleet.start()
    pid = fleet.engines[0].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await until(lambda: fleet.engines[0].pid is None)
    await fleet.close()
    assert not children()
