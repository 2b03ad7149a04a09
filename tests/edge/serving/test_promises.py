"""Headers that promise times, limits of answers, caps and guards, from the client's side."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace

import pytest

from pointsman.core.ledger.events import GpuRead
from pointsman.core.model.guards import Guards
from pointsman.core.model.request import Request
from pointsman.core.model.slo import Slo
from pointsman.core.model.worker import worker_id
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.serving.clock import monotonic_ms
from support.scripted_fleet import Fleet, hang

CLASSES = {"interactive": Slo(500.0, 50.0, "interactive"), "batch": Slo(60_000.0, None, "batch")}


@pytest.fixture
async def asked(fleet: Fleet, monkeypatch):
    """`asked(headers, path, body, …)`: the answer, and the request as the policy saw it."""
    seen: list[Request] = []

    async def ask(headers=(), path="/v1/chat/completions", body=None, **settings):
        if not fleet.engines:
            await fleet.engine("a")
            await fleet.open(slo_classes=CLASSES, **settings)
            view = fleet.frontend.ledger.view

            def noted(request, *args, **kwargs):
                seen.append(request)
                return view(request, *args, **kwargs)

            monkeypatch.setattr(fleet.frontend.ledger, "view", noted)
        message = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        answer = await fleet.ask(path, body or message, headers=headers)
        return answer, seen[-1] if seen else None

    return ask


@pytest.mark.parametrize(
    ("headers", "default", "slo"),
    [
        ([], None, None),
        ([], "batch", CLASSES["batch"]),
        ([(b"x-slo-class", b"interactive")], "batch", CLASSES["interactive"]),
        ([(b"x-slo-ttft-ms", b"250")], None, Slo(250.0)),
        ([(b"X-SLO-TPOT-MS", b"12.5")], None, Slo(None, 12.5)),
        ([(b"x-slo-ttft-ms", b"9e2"), (b"x-slo-class", b"interactive")], None, Slo(900.0, 50.0, "interactive")),
        ([(b"x-slo-tpot-ms", b"80")], "batch", Slo(60_000.0, 80.0, "batch")),
    ],
)
async def test_headers_promise_and_win_over_the_class(fleet: Fleet, asked, headers, default, slo) -> None:
    answer, request = await asked(headers, default_slo_class=default)
    assert answer.status == 200
    assert request.slo == slo
    sent = fleet.engines[0].requests[0]
    assert not [name for name, _ in sent.headers if name.startswith(b"x-slo-")]
    fleet.at_rest()


@pytest.mark.parametrize("header", [b"x-slo-ttft-ms", b"x-slo-tpot-ms"])
@pytest.mark.parametrize("value", [b"0", b"-5", b"nan", b"inf", b"fast", b"", b"1_000", b"5ms", b"\xff"])
async def test_bad_times_are_named(fleet: Fleet, asked, header, value) -> None:
    answer, request = await asked([(header, value)])
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["param"], error["code"]) == (400, header.decode(), "invalid_header")
    assert "a number above 0" in error["message"]
    assert request is None
    assert fleet.engines[0].requests == []


@pytest.mark.parametrize("header", [b"x-slo-ttft-ms", b"x-slo-tpot-ms", b"x-slo-class"])
async def test_one_that_is_given_twice_is_not_chosen_from(asked, header) -> None:
    answer, request = await asked([(header, b"50"), (header, b"60")])
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["param"], request) == (400, header.decode(), None)
    assert "given twice" in error["message"]


async def test_an_unknown_class_gets_the_known_ones(asked) -> None:
    answer, _ = await asked([(b"x-slo-class", b"gold")])
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["param"]) == (400, "x-slo-class")
    assert "there is no class 'gold'; known: interactive, batch" in error["message"]


CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("path", "body", "api", "limit"),
    [
        ("/v1/chat/completions", CHAT, "chat", None),
        ("/v1/chat/completions", CHAT | {"max_tokens": 7}, "chat", 7),
        ("/v1/chat/completions", CHAT | {"max_tokens": 7, "max_completion_tokens": 9}, "chat", 9),
        ("/v1/chat/completions", CHAT | {"max_tokens": -1}, "chat", None),
        ("/v1/chat/completions", CHAT | {"max_tokens": 10**15}, "chat", None),
        ("/v1/completions", {"model": "m", "prompt": "x", "max_tokens": 3}, "completions", 3),
        ("/v1/embeddings", {"model": "m", "input": "x"}, "embeddings", 0),
        ("/v1/responses", {"model": "m", "input": "x", "max_output_tokens": 5}, "responses", 5),
    ],
)
async def test_what_it_was_asked_by_and_the_limit_of_its_answer(asked, path, body, api, limit) -> None:
    _, request = await asked(path=path, body=body)
    assert (request.api, request.max_output_tokens) == (api, limit)


async def test_at_its_cap_a_worker_gets_no_more(fleet: Fleet) -> None:
    engine = await fleet.engine("a", answer=hang)
    source = WorkerSource("a", f"http://127.0.0.1:{engine.port}", kind="openai", models=("m",), max_in_flight=1)
    await fleet.open(sources=(source,))
    first = asyncio.create_task(fleet.chat())
    await fleet.until(lambda: engine.running == 1)
    answer = await fleet.chat()
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["code"]) == (429, "engines_full")
    assert "as its cap allows" in error["message"]
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)


async def test_busy_gpus_send_requests_elsewhere_and_a_lifted_guard_is_counted(fleet: Fleet, caplog) -> None:
    caplog.set_level(logging.WARNING, "pointsman.serving")
    for name in ("a", "b"):
        await fleet.engine(name)
    await fleet.open(guards=Guards(gpu_use=0.8))
    fleet.frontend.emit(GpuRead(worker_id("a"), monotonic_ms(), 0.95))
    for _ in range(4):
        assert (await fleet.chat()).status == 200
    assert [len(engine.requests) for engine in fleet.engines] == [0, 4]
    assert fleet.frontend.traffic.guards_lifted == 0
    fleet.frontend.emit(GpuRead(worker_id("b"), monotonic_ms(), 0.95))
    for _ in range(4):
        assert (await fleet.chat()).status == 200
    assert fleet.frontend.traffic.guards_lifted == 4
    assert sum("a guard (routing.guards)" in record.message for record in caplog.records) == 1
    metrics = await fleet.ask("/metrics", method="GET", admin=True)
    assert b"pointsman_guards_lifted_total 4.0" in metrics.body
    assert b'pointsman_worker_gpu_use{worker="a/0"} 0.95' in metrics.body
    assert [worker.gpu_use for worker in fleet.frontend.status().workers] == [0.95, 0.95]


async def test_keys_of_the_configuration_reach_the_worker(fleet: Fleet) -> None:
    await fleet.engine("a")
    source = WorkerSource("a", f"http://127.0.0.1:{fleet.engines[0].port}", kind="openai", models=("m",))
    await fleet.open(sources=(replace(source, weight=2.0, topology_distance=1),))
    (worker,) = fleet.frontend.ledger.snapshot().workers
    assert (worker.spec.weight, worker.spec.topology_distance) == (2.0, 1)
