from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest
import trustme

from pointsman.core.ledger.events import HealthRead, WorkerEvent, WorkerJoined, WorkerLeft
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.errors import ConfigError
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.cluster.prober import Prober
from pointsman.edge.cluster.status import EngineState
from pointsman.edge.cluster.timing import ProbeTiming
from pointsman.edge.wire.trust import Trusts
from support.patient_probes import PatientProbes
from support.shut_port import shut_port

QUICK = PatientProbes(interval_s=0.2, first_retry_s=0.01)


class Events:
    """What the prober emitted, and a way to wait for it."""

    def __init__(self) -> None:
        self.seen: list[WorkerEvent] = []
        self._more = asyncio.Event()

    def emit(self, event: WorkerEvent) -> None:
        self.seen.append(event)
        self._more.set()

    async def until(self, wanted: Callable[[WorkerEvent], bool], after: int = 0) -> WorkerEvent:
        async with asyncio.timeout(8):
            while True:
                found = next((event for event in self.seen[after:] if wanted(event)), None)
                if found is not None:
                    return found
                self._more.clear()
                await self._more.wait()


@pytest.fixture
async def prober_of() -> AsyncIterator[Callable[..., Prober]]:
    async with AsyncExitStack() as stack:

        async def make(emit, *, timing: ProbeTiming = QUICK, **more: object) -> Prober:
            loop = asyncio.get_running_loop()
            prober = Prober(emit, lambda: 1000.0 * loop.time(), random.Random(1), timing=timing, **more)
            return await stack.enter_async_context(prober)

        yield make


async def test_a_dead_engine_does_not_hold_up_the_others(make_engine, prober_of, vllm_answers):
    engine, hung = await make_engine(vllm_answers), await make_engine({"/version": "hang"})
    events = Events()
    prober = await prober_of(events.emit, timing=ProbeTiming(interval_s=30.0))

    with shut_port() as port:
        await prober.start(
            [
                WorkerSource("dead", f"http://127.0.0.1:{port}"),
                WorkerSource("hung", hung.url),
                WorkerSource("good", engine.url),
            ]
        )
        health = await events.until(lambda event: isinstance(event, HealthRead))

    assert (health.worker, health.ready) == ("good/0", True)
    states = {status.name: status.state for status in prober.statuses()}
    assert states["good"] is EngineState.READY
    assert states["hung"] is EngineState.LOOKING


async def test_probing_goes_on_through_loss_and_return(make_engine, prober_of, vllm_answers):
    engine = await make_engine(vllm_answers)
    events = Events()
    prober = await prober_of(events.emit)
    await prober.start([WorkerSource("a", engine.url)])
    await events.until(lambda event: isinstance(event, HealthRead) and event.ready)

    await engine.stop()
    await events.until(lambda event: isinstance(event, HealthRead) and not event.reachable)
    mark = len(events.seen)
    await engine.start()
    await events.until(lambda event: isinstance(event, HealthRead) and event.ready, after=mark)


async def test_events_suit_the_ledger(make_engine, prober_of, vllm_answers):
    engine = await make_engine(vllm_answers)
    ledger, events = Ledger(), Events()

    def emit(event: WorkerEvent) -> None:
        ledger.apply(event)
        events.emit(event)

    prober = await prober_of(emit)
    await prober.start([WorkerSource("a", engine.url)])
    await events.until(lambda event: isinstance(event, HealthRead) and event.ready)

    await prober.remove("a")
    assert isinstance(events.seen[-1], WorkerLeft)


async def test_adding_and_removing_while_it_runs(make_engine, prober_of, vllm_answers):
    first, second = await make_engine(vllm_answers), await make_engine(vllm_answers)
    events = Events()
    prober = await prober_of(events.emit)
    await prober.start([WorkerSource("a", first.url)])
    prober.add(WorkerSource("b", second.url))
    await events.until(lambda event: isinstance(event, WorkerJoined) and event.spec.id == "b/0")

    with pytest.raises(ConfigError, match="the name 'a'"):
        prober.add(WorkerSource("a", "http://127.0.0.1:1"))
    with pytest.raises(ConfigError, match="no engine is called 'c'; there are a, b"):
        await prober.remove("c")
    await prober.remove("b")

    assert events.seen[-1] == WorkerLeft("b/0", events.seen[-1].at_ms, "removed from the configuration")
    assert [status.name for status in prober.statuses()] == ["a"]


async def test_closing_ends_all_tasks_even_in_the_middle_of_a_call(make_engine, prober_of, vllm_answers):
    engine, hung = await make_engine(vllm_answers), await make_engine({"/version": "hang"})
    events = Events()
    prober = await prober_of(events.emit, timing=ProbeTiming(interval_s=30.0))
    await prober.start([WorkerSource("a", engine.url), WorkerSource("b", hung.url)])
    await events.until(lambda event: isinstance(event, HealthRead))
    before = len(events.seen)

    await prober.close()

    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("probe ")]
    assert len(events.seen) == before
    assert prober.statuses() == ()


async def test_an_unexpected_error_costs_one_round(make_engine, prober_of, vllm_answers, caplog):
    engine = await make_engine(vllm_answers)
    events = Events()
    raised = []

    def emit(event: WorkerEvent) -> None:
        if isinstance(event, HealthRead) and not raised:
            raised.append(event)
            raise KeyError("surprise")
        events.emit(event)

    prober = await prober_of(emit)
    await prober.start([WorkerSource("a", engine.url)])

    await events.until(lambda event: isinstance(event, HealthRead))
    assert "surprise" in caplog.text
    assert [record.levelno for record in caplog.records].count(logging.ERROR) == 1


async def test_https_engine_with_a_private_authority(make_engine, prober_of, vllm_answers):
    authority = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    engine = await make_engine(vllm_answers, ssl_context=server)
    events = Events()
    prober = await prober_of(events.emit, trusts=Trusts(context=client))

    await prober.start([WorkerSource("a", engine.url)])
    joined = await events.until(lambda event: isinstance(event, WorkerJoined))
    assert joined.spec.url.startswith("https://")

    # The engine comes back with another certificate of the same authority: no restart of the prober is needed.
    await events.until(lambda event: isinstance(event, HealthRead) and event.ready)
    await engine.stop()
    await events.until(lambda event: isinstance(event, HealthRead) and not event.reachable)
    rotated = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(rotated)
    mark = len(events.seen)
    await engine.start(rotated)
    await events.until(lambda event: isinstance(event, HealthRead) and event.ready, after=mark)


async def test_bad_sources_are_refused_at_start(prober_of):
    prober = await prober_of(lambda event: None)

    with pytest.raises(ConfigError, match="URL"):
        await prober.start([WorkerSource("a", "http://None:8000")])
    assert prober.statuses() == ()


async def test_adding_before_the_start_is_a_mistake(prober_of):
    prober = await prober_of(lambda event: None)

    with pytest.raises(RuntimeError, match="start"):
        prober.add(WorkerSource("a", "http://127.0.0.1:1"))
