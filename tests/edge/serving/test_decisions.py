"""Decisions of a real front end: under which id they are found, what is told of them, and what never is."""

from __future__ import annotations

import asyncio
import base64
import json
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pointsman.core.policies.registry import PolicyRegistry
from pointsman.core.timing.profiles import profile
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.configuration.loader import load_text
from pointsman.edge.configuration.route_key import RouteKey
from pointsman.edge.configuration.tree import ConfigTree
from pointsman.edge.decisions.routes import Decisions
from pointsman.edge.decisions.state import unpack_state
from pointsman.edge.serving.request_ids import RequestIds
from pointsman.edge.serving.settings import DecisionLogSettings, FrontendSettings, RingSettings
from pointsman.edge.telemetry.decision_row import DecisionRow, hashed
from pointsman.edge.traces.formats import read_trace
from pointsman.edge.wire.errors import UpstreamClosed
from support.fetch import Response
from support.scripted_fleet import JSON, SSE, Fleet, delta, hang

ID = b"x-pointsman-request-id"
SEED = 1


def decision_id(answer: Response) -> str:
    found = answer.header(ID)
    assert found is not None
    return found.decode()


async def told(fleet: Fleet, name: str) -> DecisionRow:
    answer = await fleet.ask(f"/v1/decisions/{name}", method="GET", admin=True)
    assert answer.status == 200, answer.body
    return msgspec.json.decode(answer.body, type=DecisionRow)


async def searched(fleet: Fleet, query: str = "") -> Decisions:
    answer = await fleet.ask(f"/v1/decisions{query}", method="GET", admin=True)
    assert answer.status == 200, answer.body
    return msgspec.json.decode(answer.body, type=Decisions)


async def refused(fleet: Fleet, path: str) -> tuple[int, str]:
    answer = await fleet.ask(f"/v1/decisions{path}", method="GET", admin=True)
    return answer.status, json.loads(answer.body)["error"]["message"]


async def three(fleet: Fleet, **settings: Any) -> None:
    for name in "abc":
        await fleet.engine(name)
    sources = tuple(
        WorkerSource(
            name=engine.name,
            url=f"http://127.0.0.1:{engine.port}",
            kind="openai",
            models=engine.models,
            profile="h100/llama-8b",
        )
        for engine in fleet.engines
    )
    steps = {"h100/llama-8b": profile("h100/llama-8b").step}
    await fleet.open(sources=sources, step_priors=steps, heartbeat_s=60.0, seed=SEED, **settings)


async def test_each_answer_tells_the_id_of_its_decision(fleet: Fleet) -> None:
    await three(fleet, policy="least_loaded")
    answer = await fleet.chat()
    assert answer.header(b"x-request-id") == answer.header(ID)
    row = await told(fleet, decision_id(answer))
    assert (row.id, row.status, row.http, row.client) == (decision_id(answer), "finished", 200, None)
    assert row.worker == (answer.header(b"x-pointsman-worker") or b"").decode()
    assert {one.worker for one in row.candidates} == {"a/0", "b/0", "c/0"}
    assert 0 <= (row.dispatched_ms or 0) <= (row.first_token_ms or 0) <= (row.last_token_ms or 0)
    assert row.ttft_ms == pytest.approx((row.first_token_ms or 0) - (row.dispatched_ms or 0), abs=0.002)
    assert row.itl_ms is not None
    assert row.gap_ms is not None
    assert (row.predicted_ttft_ms or 0) > 0
    assert (row.predicted_tpot_ms or 0) > 0
    assert row.cached_reported == 4


async def test_a_request_is_found_by_what_its_client_calls_it(fleet: Fleet) -> None:
    await three(fleet)
    first = await fleet.chat([(b"x-request-id", b"mine")])
    second = await fleet.chat([(b"x-request-id", b"mine")])
    other = await fleet.chat([(b"x-request-id", b"a/b c")])
    assert (first.header(b"x-request-id"), first.header(ID) != b"mine") == (b"mine", True)
    row = await told(fleet, "mine")
    assert (row.id, row.client) == (decision_id(second), hashed("mine"))
    assert (await told(fleet, decision_id(first))).id == decision_id(first)
    assert (await told(fleet, "a%2Fb%20c")).id == decision_id(other)


async def test_one_that_runs_is_found_too(fleet: Fleet) -> None:
    engine = await fleet.engine("a")
    engine.answer = hang
    await fleet.open()
    asking = asyncio.create_task(fleet.chat([(b"x-request-id", b"slow")]))
    await fleet.until(lambda: engine.running == 1)
    row = await told(fleet, "slow")
    assert (row.status, row.http, row.worker, row.attempts, row.last_token_ms) == ("running", 0, "a/0", 1, None)
    assert [one.id for one in (await searched(fleet, "?status=running")).decisions] == [row.id]
    asking.cancel()
    await fleet.until(lambda: fleet.frontend.decisions.running == 0)
    ended = await told(fleet, row.id)
    assert (ended.status, ended.http) == ("cancelled", 499)


@pytest.mark.parametrize("client_leaves", [True, False])
async def test_a_stream_that_was_cut_short_took_as_long_as_what_came_of_it(fleet: Fleet, client_leaves: bool) -> None:
    """Else the slowest requests, those that clients give up, would be in no search for the worst."""
    engine = await fleet.engine("a")
    written, wait = asyncio.Event(), asyncio.Event()

    async def three_tokens(incoming: Any, responder: Any) -> None:
        responder.start(200, SSE)
        for number, text in enumerate(("one", " two", " three"), 1):
            responder.write(delta(text))
            await fleet.until(lambda number=number: fleet.heard() == number)  # type: ignore[misc]
            await asyncio.sleep(0.01)
        written.set()
        await wait.wait()
        responder.abort()

    engine.answer = three_tokens
    await fleet.open()
    asking = asyncio.create_task(fleet.chat([(b"x-request-id", b"mine")]))
    await written.wait()
    if client_leaves:
        asking.cancel()
    else:
        wait.set()
    await fleet.until(lambda: fleet.frontend.decisions.running == 0)
    row = await told(fleet, "mine")
    assert row.status == ("cancelled" if client_leaves else "failed")
    assert row.output_tokens >= 3
    assert row.first_token_ms is not None
    assert row.last_token_ms is not None
    assert row.first_token_ms + 15 <= row.last_token_ms
    assert row.itl_ms == pytest.approx((row.last_token_ms - row.first_token_ms) / (row.output_tokens - 1), abs=0.01)
    assert [one.id for one in (await searched(fleet, "?worst=e2e")).decisions] == [row.id]
    with suppress(asyncio.CancelledError):
        await asking


async def test_refusals_tell_the_id_too(fleet: Fleet) -> None:
    engine = await fleet.engine("a")
    await fleet.open()

    async def break_off(incoming: Any, responder: Any) -> None:
        responder.abort()

    engine.answer = break_off
    answer = await fleet.chat()
    assert answer.status == 502
    row = await told(fleet, decision_id(answer))
    assert (row.status, row.http, row.first_token_ms, row.last_token_ms) == ("failed", 502, None, None)


async def test_an_unknown_id_is_told_from_one_that_is_no_longer_kept(fleet: Fleet) -> None:
    await three(fleet, ring=RingSettings(2, 2**20))
    answers = [await fleet.chat() for _ in range(4)]
    gone, there = decision_id(answers[0]), decision_id(answers[-1])
    assert (await told(fleet, there)).id == there
    status, message = await refused(fleet, f"/{gone}")
    assert status == 404
    assert message.startswith(f"{gone} was answered here, but is no longer among the last 2 decisions that are kept")
    status, message = await refused(fleet, f"/{gone.rpartition('-')[0]}-5")
    assert status == 404
    assert "is no id that this front end gave out" in message
    found = await searched(fleet)
    assert (found.kept, found.dropped, found.running, found.matched) == (2, 2, 0, 2)
    assert found.bytes > 0
    assert found.oldest_ms == found.decisions[-1].at_ms


async def test_searches_and_bad_parameters(fleet: Fleet) -> None:
    await three(fleet, policy="round_robin")
    for number in range(6):
        await fleet.chat([(b"x-tenant-id", b"t%d" % (number % 2))])
    everything = (await searched(fleet)).decisions
    assert len(everything) == 6
    assert [row.at_ms for row in everything] == sorted((row.at_ms for row in everything), reverse=True)
    assert {row.tenant for row in (await searched(fleet, "?tenant=t1")).decisions} == {"t1"}
    assert len((await searched(fleet, "?worker=a/0")).decisions) == 2
    worst = (await searched(fleet, "?worst=ttft&limit=2")).decisions
    slowest = sorted(everything, key=lambda row: -(row.first_token_ms or 0))[:2]
    assert [row.first_token_ms for row in worst] == [row.first_token_ms for row in slowest]
    assert len((await searched(fleet, "?last=1&candidates=2")).decisions[0].candidates) == 2
    for query, message in (
        ("?lats=3", "lats: unknown parameter; known: last, "),
        ("?limit=0", "limit: expected a number from 1 to 1000, not '0'"),
        ("?worst=latency", "worst: expected one of ttft, itl, e2e, error, not 'latency'"),
        ("?state=yes", "state: expected 0 or 1, not 'yes'"),
        ("?candidates=none", "candidates: expected a number from 1 to 10000, or all; not 'none'"),
        (f"/{everything[0].id}?last=2", "last: unknown parameter; known: state, candidates"),
    ):
        status, text = await refused(fleet, query)
        assert status == 400
        assert text.startswith(message)


@pytest.mark.parametrize("policy", PolicyRegistry().names())
async def test_what_was_recorded_decides_the_same_again(fleet: Fleet, policy: str) -> None:
    await three(fleet, policy=policy, route_key=RouteKey.parse("header:x-session"))
    for number in range(3):
        said = [{"role": "user", "content": f"{part} {'so it was said' * 40}"} for part in range(number + 1)]
        await asyncio.gather(*(fleet.chat([(b"x-session", b"p%d" % i)], messages=said) for i in range(4)))
    rows = (await searched(fleet, "?state=1")).decisions
    assert len(rows) == 12
    for row in rows:
        recorded = unpack_state(row.state)
        again = recorded.decide(PolicyRegistry().get(policy))
        assert again.worker == row.worker == recorded.worker
        assert recorded.request.route_key == row.session
        assert recorded.request.arrival_ms <= recorded.now_ms
        best = {one.worker: one.score for one in row.candidates}
        assert {one.worker: one.score for one in again.candidates()} == pytest.approx(best, abs=1e-6)
    assert (await searched(fleet, "?last=1")).decisions[0].state == ""


async def test_nothing_of_what_was_said_is_kept(fleet: Fleet, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not the prompt, the answer, headers, keys or the URL; in the ring, the log, states, metrics and status."""
    path = tmp_path / "decisions.jsonl"
    log = DecisionLogSettings(path, 10**7, 1, state=1.0)
    await three(fleet, decision_log=log, route_key=RouteKey.parse("header:x-session"), debug_headers=True)
    headers = [
        (b"authorization", b"Bearer kestrel-key"),
        (b"x-session", b"kestrel-session"),
        (b"x-request-id", b"kestrel-request"),
        (b"cookie", b"kestrel=1"),
        (b"user-agent", b"kestrel/1"),
        (b"x-pointsman-explain", b"1"),
    ]
    body = {
        "model": "m",
        "stream": True,
        "user": "kestrel-user",
        "messages": [{"role": "user", "content": "kestrel " * 200}],
        "metadata": {"kestrel": "kestrel"},
        "tools": [{"type": "function", "function": {"name": "kestrel", "parameters": {}}}],
    }

    async def echo(incoming: Any, responder: Any) -> None:
        responder.send(400, [*JSON, (b"x-kestrel", b"kestrel")], b'{"error": {"message": "kestrel is not allowed"}}')

    async def break_off(incoming: Any, responder: Any) -> None:
        responder.start(200, [(b"content-type", b"kestrel")], length=100)
        responder.write(b"kestrel")
        await asyncio.sleep(0)
        responder.abort()

    for answer in (None, echo, break_off):
        for engine in fleet.engines:
            engine.answer = answer or engine.answer
        for route in ("/v1/chat/completions", "/v1/completions"):
            sent = body | ({"prompt": "kestrel " * 100} if route == "/v1/completions" else {})
            with suppress(UpstreamClosed):
                await fleet.ask(f"{route}?kestrel=kestrel", sent, headers=headers)
    found = await fleet.ask("/v1/decisions?state=1", method="GET", admin=True)
    one = await fleet.ask("/v1/decisions/kestrel-request?state=1", method="GET", admin=True)
    metrics = await fleet.ask("/metrics", method="GET", admin=True)
    status = await fleet.ask("/v1/status", method="GET", admin=True)
    await fleet.frontend.close()
    rows = msgspec.json.decode(found.body, type=Decisions).decisions
    assert len(rows) == 6
    assert one.status == 200
    states = [zlib.decompress(base64.b64decode(row.state)).decode("latin-1") for row in rows]
    written = path.read_text()
    assert written.count("\n") == 7
    assert '"state":"' in written
    told_in = [found.body, one.body, metrics.body, status.body, written.encode(), caplog.text.encode()]
    for text in (*told_in, *map(str.encode, states)):
        assert b"kestrel" not in text.lower()


async def test_the_log_holds_a_sample_and_what_went_wrong(fleet: Fleet, tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    await three(fleet, decision_log=DecisionLogSettings(path, 10**7, 1, sample=0.3, state=0.5))
    for _ in range(40):
        await fleet.chat()

    async def break_off(incoming: Any, responder: Any) -> None:
        responder.abort()

    for engine in fleet.engines:
        engine.answer = break_off
    failures = [await fleet.chat() for _ in range(5)]
    await fleet.frontend.close()
    rows = [msgspec.json.decode(line, type=DecisionRow) for line in path.read_bytes().splitlines()[1:]]
    finished = [row for row in rows if row.status == "finished"]
    assert 4 <= len(finished) <= 24
    assert {row.sample for row in finished} == {0.3}
    assert {row.id for row in rows if row.status == "failed"} == {decision_id(answer) for answer in failures}
    assert {row.sample for row in rows if row.status == "failed"} == {1.0}
    assert 0 < sum(bool(row.state) for row in rows) < len(rows)
    loaded = read_trace(path)
    assert len(loaded.trace) == len(finished)
    assert any("only a sample was written" in note for note in loaded.problems.notes)


async def test_missed_promises_are_told_and_written(fleet: Fleet, tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    await three(fleet, decision_log=DecisionLogSettings(path, 10**7, 1, sample=0.0))
    await fleet.chat()
    await fleet.chat([(b"x-slo-ttft-ms", b"60000")])
    late = await fleet.chat([(b"x-slo-ttft-ms", b"0.001"), (b"x-slo-tpot-ms", b"60000")])
    assert (await told(fleet, decision_id(late))).slo_missed == ["ttft"]
    await fleet.frontend.close()
    (row,) = [msgspec.json.decode(line, type=DecisionRow) for line in path.read_bytes().splitlines()[1:]]
    assert (row.id, row.slo_missed, row.sample) == (decision_id(late), ["ttft"], 1.0)


async def test_no_ring(fleet: Fleet) -> None:
    await three(fleet, ring=RingSettings(0, 2**20))
    answer = await fleet.chat()
    assert await refused(fleet, f"/{decision_id(answer)}") == (
        404,
        "no decisions are kept in memory here: decision-log.ring is 0",
    )
    assert (await searched(fleet)).decisions == []


async def test_metrics_compare_predictions_with_what_came(fleet: Fleet) -> None:
    await three(fleet)
    for _ in range(3):
        await fleet.chat()
    text = (await fleet.ask("/metrics", method="GET", admin=True)).body.decode()
    assert 'pointsman_prediction_ratio_count{what="ttft"} 3.0' in text
    assert 'pointsman_prediction_ratio_count{what="tpot"} 3.0' in text
    assert 'pointsman_decisions_kept{state="ended"} 3.0' in text
    assert 'pointsman_decisions_kept{state="running"} 0.0' in text
    assert "pointsman_decisions_dropped_total 0.0" in text
    kept = fleet.frontend.decisions.bytes
    assert f"pointsman_decisions_bytes {float(kept)}" in text


async def test_streams_go_on_while_many_rows_are_made(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search for all of them gives the event loop its turn; here after each row, however fast they are made."""
    monkeypatch.setattr("pointsman.edge.decisions.routes._TURN_S", 0.0)
    await three(fleet)
    for _ in range(60):
        await fleet.chat()
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await searched(fleet, "?limit=1000&candidates=all&state=1")
    counting.cancel()
    assert turns >= 60


def test_configuration_of_what_is_kept() -> None:
    text = "decision-log: {path: d.jsonl, ring: 100, ring_size: 1MiB, sample: 10%, state: true}"
    settings = FrontendSettings.of(load_text(text, "c.yaml", ConfigTree))
    assert settings.ring == RingSettings(100, 2**20)
    assert settings.decision_log == DecisionLogSettings(Path("d.jsonl"), 256 * 2**20, 4, 0.1, 1.0)
    plain = FrontendSettings.of(load_text("decision-log: {path: d.jsonl}", "c.yaml", ConfigTree))
    assert plain.ring == RingSettings(4096, 32 * 2**20)
    assert plain.decision_log == DecisionLogSettings(Path("d.jsonl"), 256 * 2**20, 4)


def test_ids_that_were_given_out() -> None:
    ids = RequestIds()
    first = ids.next()
    assert ids.gave(first)
    prefix = first.removesuffix("1")
    for name in (
        "",
        prefix,
        prefix + "2",
        prefix + "0",
        prefix + "-1",
        prefix + "²",
        "pm-1-1",
        "1",
        RequestIds().next(),
    ):
        assert not ids.gave(name)
    assert RequestIds(5).next() == RequestIds(5).next()
