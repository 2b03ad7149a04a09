"""The decision log of a front end, and what is read out of it again."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from pointsman.app.cli.processes import _tree_of
from pointsman.app.simulate.run import simulate
from pointsman.app.simulate.setup import Setup, WorkerGroup
from pointsman.core.policies.registry import PolicyRegistry
from pointsman.core.timing.profiles import profile
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.configuration.loader import load_text
from pointsman.edge.configuration.route_key import RouteKey
from pointsman.edge.configuration.tree import ConfigTree
from pointsman.edge.engines.sim.server import SimServer
from pointsman.edge.engines.sim.settings import SimSettings
from pointsman.edge.serving.frontend import Frontend
from pointsman.edge.serving.settings import DecisionLogSettings, FrontendSettings
from pointsman.edge.traces.formats import read_trace
from support.fetch import Origin, UpstreamPool, fetch
from support.scripted_fleet import JSON, Fleet, hang

LONG = "Tell me about the sea, the wind and the ships that sail there. " * 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "decisions.jsonl"


def logged(path: Path) -> dict[str, object]:
    return {"decision_log": DecisionLogSettings(path, 10**7, 2)}


async def rows(fleet: Fleet, path: Path) -> list[dict]:
    await fleet.frontend.close()
    return [json.loads(line) for line in path.read_text().splitlines()][1:]


async def test_a_stream_from_its_arrival_to_its_last_token(fleet: Fleet, path: Path) -> None:
    await fleet.engine("a")
    await fleet.engine("b")
    route_key = RouteKey.parse("header:x-session")
    await fleet.open(**logged(path), policy="least_loaded", route_key=route_key, text_block_bytes=32)
    headers = [(b"x-tenant-id", b"team"), (b"x-session", b"a secret name")]
    await fleet.chat(headers, messages=[{"role": "user", "content": LONG}])
    (row,) = await rows(fleet, path)
    assert (row["status"], row["http"], row["model"], row["tenant"]) == ("finished", 200, "m", "team")
    assert (row["prompt_tokens"], row["prompt_from"], row["output_tokens"]) == (10, "engine", 3)
    assert row["cached_reported"] == 4
    assert row["policy"] == "least_loaded"
    assert {row["worker"], row["runner_up"]} == {"a/0", "b/0"}
    assert (row["margin"], row["workers"], len(row["candidates"])) == (0, 2, 2)
    assert 0 <= row["dispatched_ms"] <= row["first_token_ms"] <= row["last_token_ms"]
    assert (row["block_unit"], row["block_size"]) == ("bytes", 32)
    assert len(row["blocks"]) == 8 * (row["prompt_bytes"] // 32)
    text = path.read_text()
    assert "secret" not in text
    assert "ships" not in text
    assert 1.6e12 < row["at_ms"] < 4e12


async def test_each_ending_is_a_row(fleet: Fleet, path: Path) -> None:
    async def refuse(incoming, responder) -> None:
        responder.send(400, JSON, b"{}")

    async def break_off(incoming, responder) -> None:
        responder.abort()

    engine = await fleet.engine("a")
    await fleet.open(**logged(path))
    await fleet.chat()
    engine.answer = refuse
    await fleet.chat()
    engine.answer = break_off
    await fleet.chat()
    engine.answer = hang
    leaving = asyncio.create_task(fleet.chat())
    await fleet.until(lambda: engine.running == 1)
    leaving.cancel()
    await fleet.until(lambda: fleet.frontend.ledger.in_flight == 0)
    await fleet.ask("/v1/chat/completions", {"model": "m", "messages": []})  # no proper request: nothing was decided
    found = await rows(fleet, path)
    assert [(row["status"], row["http"]) for row in found] == [
        ("finished", 200),
        ("refused", 400),
        ("failed", 502),
        ("cancelled", 499),
    ]
    assert all(row["worker"] == "a/0" for row in found)
    loaded = read_trace(path)
    assert len(loaded.trace) == 1
    assert loaded.problems.left_out == 3
    assert [problem.text for problem in loaded.problems.named] == [
        "it has no answer: refused (400)",
        "it has no answer: failed (502)",
        "it has no answer: cancelled (499)",
    ]


async def test_it_is_off_unless_a_path_is_given(fleet: Fleet, path: Path) -> None:
    await fleet.engine("a")
    await fleet.open()
    await fleet.chat()
    assert "pointsman_decision_log" not in (await fleet.ask("/metrics", method="GET", admin=True)).body.decode()
    assert not path.exists()


async def test_rows_are_counted(fleet: Fleet, path: Path) -> None:
    await fleet.engine("a")
    await fleet.open(**logged(path))
    await fleet.chat()
    async with asyncio.timeout(30):
        while fleet.frontend._decision_log.written < 1:
            await asyncio.sleep(0.01)
    metrics = (await fleet.ask("/metrics", method="GET", admin=True)).body.decode()
    assert "pointsman_decision_log_rows_total 1.0" in metrics
    assert "pointsman_decision_log_dropped_total 0.0" in metrics


async def test_what_was_served_is_read_and_simulated(fleet: Fleet, path: Path) -> None:
    """Conversations: each turn begins with what was said before, so its blocks begin with those of the turn before."""
    for name in ("a", "b"):
        await fleet.engine(name)
    await fleet.open(**logged(path), route_key=RouteKey.parse("header:x-session"), text_block_bytes=32)
    for turn in range(3):
        for person in ("ada", "bob"):
            said = [{"role": "user", "content": f"{person}, turn {number}: {LONG}"} for number in range(turn + 1)]
            await fleet.chat([(b"x-session", person.encode())], messages=said)
    await fleet.frontend.close()
    loaded = read_trace(path)
    assert loaded.format == "decision-log"
    assert loaded.problems.left_out == 0
    trace = loaded.trace
    assert len(trace) == 6
    assert len({request.session for request in trace.requests}) == 2
    first = [request for request in trace.requests if request.session == trace.requests[0].session]
    assert trace.block_tokens == 1  # this engine says that every prompt has 10 tokens
    assert all(request.block_ids for request in first)
    assert {one.worker for one in loaded.observed} == {"a/0", "b/0"}
    assert all(one.ttft_ms is not None and one.ttft_ms >= 0 for one in loaded.observed)
    assert all(one.e2e_ms >= one.ttft_ms for one in loaded.observed)
    setup = Setup((WorkerGroup(profile("h100/llama-8b"), 2),))
    outcome = simulate(trace, setup, PolicyRegistry().get("prefix"))
    assert outcome.done.all()
    assert outcome.prompt_tokens.tolist() == [10] * 6


async def test_engines_with_kv_events_give_blocks_of_tokens(path: Path) -> None:
    """Simulated engines: the trace has their blocks, and simulated it finds in caches what they found."""
    async with AsyncExitStack() as stack:
        sim = SimServer(SimSettings(num_blocks=500, kv_events="tcp://127.0.0.1:*", replay="tcp://127.0.0.1:*"))
        await sim.start()
        stack.push_async_callback(sim.close)
        pool = UpstreamPool()
        stack.push_async_callback(pool.close)
        sources = (WorkerSource(name="a", url=sim.url),)
        settings = FrontendSettings(sources=sources, port=0, admin_port=0, **logged(path), seed=1)  # type: ignore[arg-type]
        frontend = Frontend(settings)
        await frontend.start()
        stack.push_async_callback(frontend.close)
        async with asyncio.timeout(30):
            while not any(worker.exact for worker in frontend.ledger.snapshot().workers):
                await asyncio.sleep(0.01)
        for number in range(4):
            body = {"model": "sim", "prompt": [*range(100, 300), *[400 + number] * 30], "max_tokens": 5, "stream": True}
            origin = Origin.parse(frontend.url)
            await fetch(pool, origin, "POST", "/v1/completions", body=json.dumps(body).encode())
    loaded = read_trace(path)
    trace = loaded.trace
    assert trace.block_tokens == 16
    assert [request.prompt_tokens for request in trace.requests] == [230] * 4
    assert [len(request.block_ids) for request in trace.requests] == [230 // 16] * 4
    assert [len(set(ids)) for ids in zip(*(r.block_ids for r in trace.requests), strict=True)] == [1] * 12 + [4] * 2
    assert [one.cached_tokens for one in loaded.observed] == [0, 192, 192, 192]
    rows = [json.loads(line) for line in path.read_text().splitlines()][1:]
    assert all(row["exact"] and row["prompt_from"] == "engine" for row in rows)
    assert [row.get("cached", 0) for row in rows] == [0, 192, 192, 192]
    outcome = simulate(trace, Setup((WorkerGroup(profile("h100/llama-8b"), 1),)), PolicyRegistry().get("kv"))
    assert outcome.cached_tokens.sum() > 0


def test_processes_write_files_of_their_own() -> None:
    text = "decision-log: {path: logs/decisions.jsonl, max_size: 1MiB, keep: 7}"
    tree = load_text(text, "c.yaml", ConfigTree)
    paths = [FrontendSettings.of(_tree_of(tree, index)).decision_log for index in range(2)]
    assert paths[0] == DecisionLogSettings(Path("logs/decisions.1.jsonl"), 2**20, 7)
    assert paths[1] == replace(paths[0], path=Path("logs/decisions.2.jsonl"))
