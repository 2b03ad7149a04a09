"""What the front end reads of streams, and what it says of health: log, metrics, status."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from pointsman.core.ledger import events as ev
from pointsman.core.ledger.events import StreamsRead
from pointsman.core.ledger.health.changes import HealthChange
from pointsman.core.ledger.health.facts import Cause
from pointsman.core.ledger.health.settings import HealthSettings
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.fault import Fault
from pointsman.core.model.request import Request
from pointsman.core.model.worker import WorkerId, WorkerSpec, worker_id
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.engines.sim.faults import Faults
from pointsman.edge.engines.sim.server import SimServer
from pointsman.edge.engines.sim.settings import SimSettings
from pointsman.edge.serving.frontend import Frontend
from pointsman.edge.serving.health_log import HealthLog
from pointsman.edge.serving.health_metrics import HealthCollector
from pointsman.edge.serving.health_status import health_status
from pointsman.edge.serving.live_streams import LiveStreams
from pointsman.edge.serving.settings import FrontendSettings
from support.scripted_fleet import JSON, Fleet
from support.waiting import eventually

A, B = worker_id("a"), worker_id("b")


@dataclass
class Stream:
    """What a relay knows."""

    engine_events: int = 0
    silent_ms: float | None = 0.0


class TestLiveStreams:
    def test_tokens_since_the_reading_before(self) -> None:
        one, two = Stream(10, 30.0), Stream(5, 20.0)
        streams = LiveStreams(lambda: [(A, one), (A, two)])
        assert streams.read(1_000) == [StreamsRead(A, 1_000, 2, 0, 980.0, 20.0)]
        one.engine_events, two.engine_events = 60, 6
        assert streams.read(2_000) == [StreamsRead(A, 2_000, 2, 51, 1_980.0, 20.0)]

    def test_four_of_five_are_what_counts(self) -> None:
        ages = [5_000.0, 10.0, 6_000.0, 7_000.0, 8_000.0]
        streams = LiveStreams(lambda: [(A, Stream(1, age)) for age in ages])
        assert streams.read(10_000) == [StreamsRead(A, 10_000, 5, 0, 9_990.0, 5_000.0)]
        ages.append(10.0)
        assert streams.read(11_000)[0].quiet_ms == 10.0

    def test_streams_that_have_not_begun_or_whose_client_waits_are_none(self) -> None:
        begun, waiting = Stream(3, None), Stream(0, None)
        streams = LiveStreams(lambda: [(A, begun), (B, waiting)])
        assert streams.read(1_000) == [StreamsRead(A, 1_000, 0, 0, 1_000, 0.0), StreamsRead(B, 1_000, 0, 0, 1_000, 0.0)]
        begun.silent_ms, begun.engine_events = 10.0, 50
        # What came meanwhile is not counted: nobody knows when.
        assert streams.read(2_000)[0] == StreamsRead(A, 2_000, 1, 0, 1_990.0, 10.0)

    def test_comments_that_keep_a_connection_open_are_no_tokens(self) -> None:
        stream = Stream(7, 30.0)
        streams = LiveStreams(lambda: [(A, stream)])
        for second in range(6):  # bytes came each time, and no event
            (reading,) = streams.read(1_000.0 * second)
            assert (reading.tokens, reading.quiet_ms) == (0, 1_000.0 * second + 30.0)
            assert reading.last_ms == -30.0
        stream.engine_events = 8
        assert streams.read(6_000) == [StreamsRead(A, 6_000, 1, 1, 5_970.0, 30.0)]

    def test_a_worker_without_streams_is_read_once_more(self) -> None:
        running = [(A, Stream(1, 5.0))]
        streams = LiveStreams(lambda: running)
        streams.read(1_000)
        running.clear()
        assert streams.read(2_000) == [StreamsRead(A, 2_000, 0, 0, 2_000, 0.0)]
        assert streams.read(3_000) == []


def change(
    what: str = "serving", state: str = "no", worker: WorkerId = A, at_ms: float = 0.0, reason: str = "no token"
) -> HealthChange:
    return HealthChange(worker, at_ms, what, state, 12_340.0, Cause.STALLED, reason)


class TestLog:
    @pytest.fixture(autouse=True)
    def lines(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "pointsman.health")

    @pytest.mark.parametrize(
        ("what", "state", "level", "words"),
        [
            ("live", "no", logging.WARNING, "is not live"),
            ("ready", "unknown", logging.WARNING, "may not be ready"),
            ("serving", "yes", logging.INFO, "is serving"),
            ("kept", "yes", logging.WARNING, "is used although it should be left out"),
            ("kept", "no", logging.INFO, "is judged by itself again"),
            ("canary", "no", logging.WARNING, "gets no canaries"),
            ("paused", "yes", logging.WARNING, "gets a pause"),
        ],
    )
    def test_one_line_with_the_reason(self, caplog, what: str, state: str, level: int, words: str) -> None:
        HealthLog().write([change(what, state)])
        (record,) = caplog.records
        assert record.levelno == level
        assert record.getMessage().startswith(f"a/0 {words}")
        assert record.getMessage().endswith(": no token (after 12.3 s)")

    def test_ranks_that_change_alike_share_a_line(self, caplog) -> None:
        changes = [change(worker=worker_id("a", rank)) for rank in range(8)]
        HealthLog().write([*changes, change(worker=B), change(worker=worker_id("a", 1), reason="another")])
        assert [record.getMessage().split(" is not")[0] for record in caplog.records] == ["a (8 ranks)", "b/0", "a/1"]

    def test_what_befalls_a_thousand_engines_at_once_is_no_thousand_lines(self, caplog) -> None:
        many = [change(worker=worker_id(f"e{number}"), reason=f"no token for {number} s") for number in range(1_000)]
        HealthLog().write([*many, change("ready", "no")])
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == 52
        assert "a/0 is not ready" in said[50]
        assert said[51].endswith("of 950 engines more; `pointsman status` shows which")

    def test_pauses_are_said_once_a_minute(self, caplog) -> None:
        log = HealthLog()
        for second in range(0, 150, 10):
            log.write([change("paused", "yes", at_ms=1_000.0 * second)])
        assert len(caplog.records) == 3


@pytest.fixture
def ledger() -> Ledger:
    """a serves, b was never asked, c failed."""
    made = Ledger(health=HealthSettings(failures=1))
    for name in "abc":
        made.apply(ev.WorkerJoined(WorkerSpec(worker_id(name), f"http://{name}", "vllm", ("m",)), 0.0))
        if name != "b":
            made.apply(ev.HealthRead(worker_id(name), 0.0, True, True, "GET /health answered 200"))
    for number, worker in enumerate((A, worker_id("c"))):
        made.apply(ev.Admitted(Request(f"r{number}", "m", 0.0, 1), 0.0))
        made.apply(ev.Dispatched(f"r{number}", worker, 0.0))
    made.apply(ev.FirstToken("r0", 2_000.0))
    made.apply(ev.Failed("r1", 2_000.0, "it answered 500", Fault.SERVER_ERROR))
    made.apply(ev.GpuRead(A, 2_000.0, 0.5, 0.75))
    made.apply(ev.CanarySent(A, 2_000.0))
    made.apply(ev.CanaryRead(A, 2_500.0, 2_000.0, ev.CanaryResult.PASSED, "2 events in 500 ms", 500.0))
    return made


def test_metrics(ledger: Ledger) -> None:
    registry = CollectorRegistry()
    registry.register(HealthCollector(ledger.snapshot, lambda: ledger.health_counts))
    page = generate_latest(registry).decode()
    for line in (
        'pointsman_worker_health{fact="live",worker="a/0"} 1.0',
        'pointsman_worker_health{fact="serving",worker="a/0"} 1.0',
        'pointsman_worker_health{fact="live",worker="b/0"} -1.0',
        'pointsman_worker_health{fact="serving",worker="c/0"} 0.0',
        'pointsman_worker_standing{worker="a/0"} 0.0',
        'pointsman_worker_standing{worker="c/0"} 2.0',
        'pointsman_worker_kept{worker="c/0"} 0.0',
        'pointsman_worker_gpu_memory{worker="a/0"} 0.75',
        'pointsman_worker_health_changes_total{cause="failures",state="no",what="serving",worker="c/0"} 1.0',
        'pointsman_canaries_total{result="passed",worker="a/0"} 1.0',
        'pointsman_canary_seconds{worker="a/0"} 0.5',
        "pointsman_health_changes_lost_total 0.0",
    ):
        assert line in page
    assert 'gpu_memory{worker="b/0"}' not in page


def test_status(ledger: Ledger) -> None:
    a, b, c = (health_status(worker.health, 4_500.0) for worker in ledger.snapshot().workers)
    assert (a.live.state, a.ready.state, a.serving.state, a.standing) == ("yes", "yes", "yes", "trusted")
    assert (a.serving.for_s, a.proof_ago_s, a.canary.last, a.canary.ago_s) == (2.5, 2.0, "passed", 2.5)
    assert (b.live.state, b.live.reason, b.proof_ago_s) == ("unknown", "joined, not probed yet", None)
    assert (c.serving.state, c.standing, c.cause, c.again_in_s) == ("no", "out", "failures", 7.5)
    assert c.serving.reason == "1 failures in a row, the last: it answered 500; left out for 10 s"


def answering(status: int, *headers: tuple[bytes, bytes]):
    async def answer(incoming, responder) -> None:
        responder.send(status, [*JSON, *headers], b'{"error":{"message":"mine"}}')

    return answer


class TestFrontEnd:
    async def test_an_engine_that_fails_is_left_out_and_everybody_is_told_why(self, fleet: Fleet, caplog) -> None:
        caplog.set_level(logging.INFO, "pointsman.health")
        bad = await fleet.engine("bad", answer=answering(500))
        await fleet.engine("good")
        frontend = await fleet.open(heartbeat_s=60.0)
        while frontend.ledger.snapshot().workers[0].usable:
            assert (await fleet.chat()).status == 200
        failed = len(bad.requests)
        assert failed == 5
        for _ in range(4):
            await fleet.chat()
        assert len(bad.requests) == failed
        status = frontend.status().workers[0]
        assert (status.state, status.health.serving.state) == ("failing", "no")
        assert "5 failures in a row, the last: it answered 500" in status.reason
        frontend._health.after_tick()
        assert "bad/0 is not serving: 5 failures in a row, the last: it answered 500; left out for 10 s" in caplog.text
        page = (await fleet.ask("/metrics", method="GET", admin=True)).body.decode()
        assert 'pointsman_worker_health{fact="serving",worker="bad/0"} 0.0' in page
        fleet.at_rest()

    async def test_one_that_is_overloaded_gets_the_pause_that_it_asked_for(self, fleet: Fleet) -> None:
        busy = await fleet.engine("busy", answer=answering(429, (b"retry-after", b"7")))
        await fleet.engine("good")
        frontend = await fleet.open(heartbeat_s=60.0)
        for _ in range(6):
            assert (await fleet.chat()).status == 200
        assert len(busy.requests) == 1
        worker = frontend.status().workers[0]
        assert worker.state == "paused"
        assert worker.health.paused_for_s == pytest.approx(7, abs=2)
        fleet.at_rest()

    async def test_a_frozen_engine_is_found_by_its_canary_and_comes_back_by_one(self) -> None:
        async with AsyncExitStack() as stack:
            engines = [SimServer(SimSettings(port=0)) for _ in range(2)]
            for engine in engines:
                await engine.start()
                stack.push_async_callback(engine.close)
            sources = tuple(WorkerSource(name, engine.url) for name, engine in zip("ab", engines, strict=True))
            beat = HealthSettings(heartbeat_ms=500.0, canary_idle_ms=1_000.0, cool_off_ms=500.0)
            settings = FrontendSettings(sources=sources, port=0, admin_port=0, heartbeat_s=0.5, health=beat)
            frontend = Frontend(settings)
            await frontend.start()
            stack.push_async_callback(frontend.close)

            def state() -> tuple[str, str]:
                worker = frontend.status().workers[0]
                return worker.state, worker.health.serving.state

            await eventually(lambda: len(frontend.status().workers) == 2 and state() == ("ready", "yes"), 15)
            engines[0].state.faults.set(Faults(hang=True))
            await eventually(lambda: state() == ("not_serving", "no"), 15)
            assert "a canary was not answered in time" in frontend.status().workers[0].reason
            assert frontend.status().workers[1].state == "ready"
            engines[0].state.faults.set(Faults())
            await eventually(lambda: state() == ("ready", "yes"), 15)
            totals = frontend.ledger.snapshot().totals
            assert totals.dispatched == totals.finished == 0
