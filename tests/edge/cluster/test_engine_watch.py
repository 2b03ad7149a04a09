from __future__ import annotations

import logging
import random
from dataclasses import replace

import pytest

from pointsman.core.ledger.events import HealthRead, MetricsRead, WorkerChanged, WorkerEvent, WorkerJoined, WorkerLeft
from pointsman.core.model.worker import worker_id
from pointsman.edge.cluster.engine_watch import EngineWatch
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.cluster.status import EngineState
from pointsman.edge.cluster.timing import ProbeTiming
from pointsman.edge.engines.http import Answer, EngineCallError, EngineHttp, Trouble
from support.log_lines import own_lines


class Http(EngineHttp):
    """Waits for `hurried` not long, and for all other paths as long as the slowest machine takes."""

    def __init__(self, session, source: WorkerSource) -> None:
        super().__init__(session, source.url, api_key=source.api_key, timeout_s=8.0)
        self._brief = EngineHttp(session, source.url, api_key=source.api_key, timeout_s=0.1)
        self.hurried = ""

    async def get(self, path: str) -> Answer:
        return await (self._brief.get(path) if path == self.hurried else super().get(path))


class Bench:
    """A watch that is turned by hand, on a clock that is set by hand."""

    def __init__(self, session, source: WorkerSource, *, health_checks: bool = True) -> None:
        self.now_ms = 1000.0
        self.events: list[WorkerEvent] = []
        self.http = Http(session, source)
        self.watch = EngineWatch(
            source,
            self.http,
            self.events.append,
            lambda: self.now_ms,
            random.Random(1),
            ProbeTiming(identify_interval_s=60.0),
            health_checks,
        )

    async def turn(self, after_s: float = 5.0) -> list[WorkerEvent]:
        """The events of one round."""
        self.now_ms += 1000.0 * after_s
        before = len(self.events)
        await self.watch.turn()
        return self.events[before:]

    @property
    def state(self) -> EngineState:
        return self.watch.status.state


def kinds(events: list[WorkerEvent]) -> list[str]:
    return [type(event).__name__ for event in events]


@pytest.fixture
def bench_of(session):
    def make(engine, *, health_checks: bool = True, **said: object) -> Bench:
        source = replace(WorkerSource("gpu-a", engine.url), **said)
        return Bench(session, source, health_checks=health_checks)

    return make


async def test_the_first_round_joins_and_reads(make_engine, bench_of, vllm_answers, caplog):
    caplog.set_level(logging.INFO, "pointsman")
    bench = bench_of(await make_engine(vllm_answers))

    joined, health, metrics = await bench.turn()

    assert isinstance(joined, WorkerJoined)
    assert (joined.spec.id, joined.spec.models, joined.spec.kv_capacity_tokens) == ("gpu-a/0", ("m",), 9600)
    assert health == HealthRead("gpu-a/0", 6000.0, True, True, "GET /health answered 200")
    assert metrics == MetricsRead("gpu-a/0", 6000.0, 3, 2, 0.25, 9600)
    assert bench.state is EngineState.READY
    assert "gpu-a joined" in caplog.text
    assert "vLLM 0.32.0, model m" in caplog.text


async def test_later_rounds_are_cheap_and_silent(make_engine, bench_of, vllm_answers, caplog):
    engine = await make_engine(vllm_answers)
    bench = bench_of(engine)
    await bench.turn()
    engine.asked.clear()
    caplog.set_level(logging.INFO, "pointsman")

    assert kinds(await bench.turn()) == ["HealthRead", "MetricsRead"]
    assert sorted(asked.path for asked in engine.asked) == ["/health", "/metrics"]
    assert own_lines(caplog) == []


async def test_an_engine_that_is_not_there_yet(make_engine, bench_of, vllm_answers, caplog):
    engine = await make_engine(vllm_answers)
    bench = bench_of(engine)
    await engine.stop()

    assert await bench.turn() == []
    assert await bench.turn() == []
    assert bench.state is EngineState.LOOKING
    assert "cannot connect" in bench.watch.status.reason
    assert caplog.text.count("cannot be used yet") == 1

    await engine.start()
    assert kinds(await bench.turn()) == ["WorkerJoined", "HealthRead", "MetricsRead"]


async def test_models_named_in_the_configuration_exist_before_the_engine_answers(make_engine, bench_of, vllm_answers):
    engine = await make_engine(vllm_answers)
    bench = bench_of(engine, models=("alias",), kv_capacity_tokens=50)
    await engine.stop()
    bench.watch.announce()

    (joined,) = bench.events
    assert (joined.spec.id, joined.spec.models, joined.spec.kind) == ("gpu-a/0", ("alias",), "openai")
    (health,) = await bench.turn()
    assert (health.reachable, health.ready) == (False, False)

    await engine.start()
    events = await bench.turn()
    assert kinds(events) == ["WorkerJoined", "HealthRead", "MetricsRead"]
    assert (events[0].spec.kind, events[0].spec.models, events[0].spec.kv_capacity_tokens) == ("vllm", ("alias",), 50)


async def test_one_lost_probe_is_reported_but_no_verdict(make_engine, bench_of, vllm_answers, caplog):
    engine = await make_engine(vllm_answers)
    bench = bench_of(engine)
    await bench.turn()
    await engine.stop()

    (first,) = await bench.turn()
    assert (first.reachable, first.ready) == (False, False)
    assert bench.state is EngineState.READY

    await bench.turn()
    await bench.turn()
    assert bench.state is EngineState.LOST
    assert all(event.refused for event in bench.events if isinstance(event, HealthRead) and not event.reachable)


async def test_a_slow_health_answer_does_not_hide_the_load(make_engine, bench_of, vllm_answers):
    engine = await make_engine(vllm_answers)
    bench = bench_of(engine)
    await bench.turn()
    bench.http.hurried = "/health"
    engine.answers["/health"] = "hang"

    health, metrics = await bench.turn()

    assert not health.reachable
    assert "not answered within 0.1 s" in health.reason
    assert metrics.running == 3


async def test_an_engine_that_comes_back_is_asked_what_it_is(make_engine, bench_of, vllm_answers, caplog):
    caplog.set_level(logging.INFO, "pointsman")
    engine = await make_engine(vllm_answers)
    bench = bench_of(engine)
    await bench.turn()
    await engine.stop()
    await bench.turn()
    await bench.turn()
    await engine.start()
    engine.answers["/v1/models"] = {"data": [{"id": "other", "owned_by": "vllm"}]}

    events = await bench.turn()

    assert kinds(events) == ["WorkerJoined", "HealthRead", "MetricsRead"]
    assert events[0].spec.models == ("other",)
    assert bench.state is EngineState.READY
    assert "gpu-a changed" in caplog.text
    assert bench.state is EngineState.READY


async def test_an_engine_that_was_only_cut_off_keeps_its_worker(make_engine, bench_of, vllm_answers):
    engine = await make_engine(vllm_answers)
    bench = bench_of(engine)
    await bench.turn()
    await engine.stop()
    await bench.turn()
    await engine.start()

    assert kinds(await bench.turn()) == ["HealthRead", "MetricsRead"]


async def test_an_engine_that_was_lost_and_tells_that_it_is_the_same_keeps_its_worker(
    make_engine, bench_of, vllm_answers
):
    engine = await make_engine(vllm_answers)
    bench = bench_of(engine)
    await bench.turn()
    await engine.stop()
    await bench.turn()
    await bench.turn()
    await engine.start()

    assert kinds(await bench.turn()) == ["HealthRead", "MetricsRead"]


@pytest.mark.parametrize("answers", [{"/health": 200}, {"/health": 503, "/v1/models": 503}], ids=["at once", "slowly"])
async def test_an_engine_that_was_lost_and_would_not_tell_of_a_restart_joins_anew(
    make_engine, bench_of, vllm_answers, answers
):
    """As a vLLM without statistics: its cache may be empty now, and its KV events have to be checked again."""
    usual = vllm_answers | {"/metrics": "process_start_time_seconds 1.7e+09\n"}
    engine = await make_engine(dict(usual))
    bench = bench_of(engine)
    await bench.turn()
    await engine.stop()
    assert kinds(await bench.turn()) == ["HealthRead"]
    await bench.turn()
    await engine.start()
    engine.answers.update(answers)
    await bench.turn()
    engine.answers.update(usual)
    await bench.turn()
    await bench.turn()

    back = kinds(bench.events[4:])
    assert back.count("WorkerJoined") == 1
    assert bench.state is EngineState.READY
    await engine.stop()
    await bench.turn()
    await engine.start()
    assert kinds(await bench.turn()) == ["HealthRead"]  # one lost probe is nothing


async def test_a_restart_is_seen_in_the_counters(make_engine, bench_of, vllm_answers, caplog):
    caplog.set_level(logging.INFO, "pointsman")
    engine = await make_engine(vllm_answers)
    bench = bench_of(engine)
    await bench.turn()
    engine.answers["/metrics"] = vllm_answers["/metrics"].replace(
        'source="local_compute"} 70', 'source="local_compute"} 0'
    )

    assert kinds(await bench.turn()) == ["WorkerJoined", "HealthRead", "MetricsRead"]
    assert "gpu-a restarted" in caplog.text
    assert kinds(await bench.turn()) == ["HealthRead", "MetricsRead"]


async def test_a_restart_is_not_forgotten_while_it_cannot_be_identified(make_engine, bench_of, vllm_answers):
    engine = await make_engine(vllm_answers)
    bench = bench_of(engine)
    await bench.turn()
    engine.answers["/metrics"] = vllm_answers["/metrics"].replace("1.7e+09", "1.8e+09")
    engine.answers["/version"] = 503

    health, _ = await bench.turn()
    assert (health.reachable, health.ready) == (True, False)

    engine.answers["/version"] = {"version": "0.33.0"}
    assert kinds(await bench.turn()) == ["WorkerJoined", "HealthRead", "MetricsRead"]
    assert bench.watch.status.facts.version == "0.33.0"


async def test_not_ready_is_not_unreachable(make_engine, bench_of, vllm_answers, caplog):
    engine = await make_engine(vllm_answers)
    bench = bench_of(engine)
    await bench.turn()
    engine.answers["/health"] = 503

    health, _ = await bench.turn()

    assert (health.reachable, health.ready, health.reason) == (True, False, "GET /health answered 503")
    assert bench.state is EngineState.NOT_READY
    assert (bench.state, bench.watch.status.reason) == (EngineState.NOT_READY, "GET /health answered 503")


async def test_a_failed_scrape_is_unknown_load_and_logged_once(make_engine, bench_of, vllm_answers, caplog):
    caplog.set_level(logging.INFO, "pointsman")
    engine = await make_engine(vllm_answers)
    bench = bench_of(engine)
    await bench.turn()
    engine.answers["/metrics"] = "vllm:num_requests_running nonsense\n"

    assert kinds(await bench.turn()) == ["HealthRead"]
    assert kinds(await bench.turn()) == ["HealthRead"]
    assert caplog.text.count("load is unknown") == 1
    assert bench.watch.status.load_unknown is not None

    engine.answers["/metrics"] = vllm_answers["/metrics"]
    assert kinds(await bench.turn()) == ["HealthRead", "MetricsRead"]
    assert "known again" in caplog.text
    assert bench.watch.status.load_unknown is None


async def test_an_engine_without_load_is_not_asked_for_it(make_engine, bench_of):
    engine = await make_engine({"/v1/models": {"data": [{"id": "m"}]}})
    bench = bench_of(engine)

    assert kinds(await bench.turn()) == ["WorkerJoined", "HealthRead"]
    assert engine.count("/metrics") == 0
    assert bench.watch.status.load_unknown is None


async def test_models_are_read_again_after_a_while(make_engine, bench_of, vllm_answers):
    engine = await make_engine(vllm_answers)
    bench = bench_of(engine)
    await bench.turn()
    engine.answers["/v1/models"] = {"data": [{"id": "m", "owned_by": "vllm"}, {"id": "sql", "parent": "m"}]}

    assert kinds(await bench.turn(after_s=30)) == ["HealthRead", "MetricsRead"]
    joined, *_ = await bench.turn(after_s=31)
    assert joined.spec.models == ("m", "sql")
    assert engine.count("/v1/completions") == 1  # the probe that costs is made once
    assert bench.watch.status.facts.capabilities.cached_tokens is True


async def test_a_slow_look_at_what_it_is_does_not_stop_a_healthy_engine(make_engine, bench_of, vllm_answers):
    engine = await make_engine(vllm_answers)
    bench = bench_of(engine)
    await bench.turn()
    bench.http.hurried = "/version"
    engine.answers["/version"] = "hang"

    health, _ = await bench.turn(after_s=61)

    assert health.ready


async def test_ranks_come_and_go(make_engine, bench_of, vllm_answers):
    def metrics(ranks: int) -> str:
        return "".join(
            f'vllm:num_requests_running{{engine="{rank}"}} {rank}\nvllm:num_requests_waiting{{engine="{rank}"}} 0\n'
            for rank in range(ranks)
        )

    engine = await make_engine(vllm_answers | {"/metrics": metrics(3)})
    bench = bench_of(engine)
    first = await bench.turn()
    assert [event.spec.id for event in first if isinstance(event, WorkerJoined)] == ["gpu-a/0", "gpu-a/1", "gpu-a/2"]
    assert [(e.worker, e.running) for e in first if isinstance(e, MetricsRead)][2] == ("gpu-a/2", 2)

    engine.answers["/metrics"] = metrics(2)
    later = await bench.turn(after_s=61)
    assert [event.worker for event in later if isinstance(event, WorkerLeft)] == ["gpu-a/2"]
    assert not any(isinstance(event, WorkerJoined) for event in later)


async def test_an_empty_model_list_is_no_worker(make_engine, bench_of, caplog):
    engine = await make_engine({"/v1/models": {"data": []}})
    bench = bench_of(engine)

    assert await bench.turn() == []
    assert "lists no model" in bench.watch.status.reason

    engine.answers["/v1/models"] = {"data": [{"id": "m"}]}
    assert kinds(await bench.turn()) == ["WorkerJoined", "HealthRead"]


async def test_the_key_goes_with_every_probe_and_into_no_log(make_engine, bench_of, vllm_answers, caplog):
    caplog.set_level(logging.DEBUG, "pointsman")
    engine = await make_engine(vllm_answers, key="sesame")

    assert kinds(await bench_of(engine, api_key="sesame").turn())[0] == "WorkerJoined"
    assert {asked.authorization for asked in engine.asked} == {"Bearer sesame"}

    await bench_of(engine, api_key="sesam").turn()
    assert "the key given for it is wrong" in caplog.text
    assert "sesam" not in caplog.text


async def test_an_engine_of_another_kind_at_the_same_place(make_engine, bench_of, vllm_answers):
    engine = await make_engine(vllm_answers)
    bench = bench_of(engine)
    await bench.turn()
    engine.answers.clear()
    engine.answers["/v1/models"] = {"data": [{"id": "elsewhere"}]}

    joined, *_ = await bench.turn()
    assert (joined.spec.kind, joined.spec.models) == ("openai", ("elsewhere",))
    (health,) = await bench.turn()
    assert health.ready
    assert bench.watch.status.load_unknown is None


async def test_health_checks_switched_off(make_engine, bench_of, vllm_answers):
    engine = await make_engine(vllm_answers | {"/health": 503})
    bench = bench_of(engine, health_checks=False)

    _, health, _ = await bench.turn()

    assert health.ready
    assert engine.count("/health") == 0


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ({"/ready": 200}, "GET /ready answered 200"),
        ({"/ready": 404, "/health": 200}, "GET /health answered 200"),
        ({"/ready": 503, "/health": 200}, "GET /ready answered 503"),
        ({}, "GET /health answered 404"),
    ],
)
async def test_the_first_health_route_that_exists_counts(make_engine, bench_of, answers, reason):
    sglang = {"/server_info": {"served_model_name": "m", "page_size": 16}, "/v1/models": {"data": [{"id": "m"}]}}
    bench = bench_of(await make_engine(sglang | answers))

    _, health = await bench.turn()

    assert (health.reason, health.ready) == (reason, reason.endswith("200"))


async def test_leaving(make_engine, bench_of, vllm_answers):
    bench = bench_of(await make_engine(vllm_answers))
    await bench.turn()
    bench.events.clear()

    bench.watch.leave("drained")
    bench.watch.leave("drained")

    assert bench.events == [WorkerLeft("gpu-a/0", 6000.0, "drained")]


async def test_another_model_at_the_same_process_is_a_change_and_not_a_new_worker(make_engine, bench_of, vllm_answers):
    engine = await make_engine(vllm_answers)
    bench = bench_of(engine)
    await bench.turn()
    models = engine.answers["/v1/models"]["data"]
    engine.answers["/v1/models"] = {"data": [*models, {"id": "adapter", "parent": models[0]["id"], "root": "x"}]}

    events = await bench.turn(after_s=61)
    changes = [event for event in events if isinstance(event, WorkerChanged)]
    assert [event.spec.models for event in changes] == [(models[0]["id"], "adapter")]
    assert not any(isinstance(event, WorkerJoined) for event in events)


async def test_what_it_generated_is_told(make_engine, bench_of, vllm_answers):
    more = 'vllm:generation_tokens_total{engine="0",model_name="m"} 77.0\n'
    bench = bench_of(await make_engine(vllm_answers | {"/metrics": vllm_answers["/metrics"] + more}))
    await bench.turn()
    assert bench.events[-1].generated_tokens == 77


async def test_a_probe_that_could_not_be_sent_says_nothing_of_the_engine(
    make_engine, bench_of, vllm_answers, monkeypatch
):
    bench = bench_of(await make_engine(vllm_answers))
    await bench.turn()

    async def no_descriptors(*arguments: object) -> None:
        raise EngineCallError(Trouble.NOT_ASKED, "no descriptor is left")

    monkeypatch.setattr(bench.watch._http, "get", no_descriptors)
    for _ in range(5):
        assert await bench.turn() == []
    assert bench.state is EngineState.READY
    monkeypatch.undo()
    assert kinds(await bench.turn()) == ["HealthRead", "MetricsRead"]  # it is no other one than before


async def test_a_late_health_answer_beside_a_load_that_was_read_loses_nobody(make_engine, bench_of, vllm_answers):
    engine = await make_engine(vllm_answers)
    bench = bench_of(engine)
    await bench.turn()
    bench.http.hurried = "/health"
    engine.answers["/health"] = "hang"
    for _ in range(3):
        health, _ = await bench.turn()
        assert (health.reachable, health.refused) == (False, False)
    assert bench.state is EngineState.READY


async def test_who_can_be_sent_a_canary(make_engine, bench_of, vllm_answers):
    bench = bench_of(await make_engine(vllm_answers))
    worker = worker_id("gpu-a")
    assert bench.watch.canary_target(worker) is None
    await bench.turn()
    target = bench.watch.canary_target(worker)
    assert (target.model, target.path, target.token_ids) == ("m", "/v1/completions", True)
    target.path = "/v1/chat/completions"
    await bench.turn()
    assert bench.watch.canary_target(worker) is target  # what was found out is kept
    assert bench.watch.canary_target(worker_id("gpu-a", 1)) is None
    bench.watch.leave("removed")
    assert bench.watch.canary_target(worker) is None
