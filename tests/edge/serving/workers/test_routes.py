"""`/v1/workers` of a front end that runs, with requests in flight."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from pointsman.edge.cluster.discovery.discovery import DiscoveryState
from pointsman.edge.serving.workers.settings import DiscoverySettings
from pointsman.edge.traces.profile_file import load_profile
from pointsman.edge.wire.http1_server import IncomingRequest, Responder
from support.scripted_fleet import SSE, Fleet, delta


def read(body: bytes) -> dict:
    return json.loads(body)


class Held:
    """Streams that say one word and end when they may."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()

    async def __call__(self, incoming: IncomingRequest, responder: Responder) -> None:
        responder.start(200, SSE)
        responder.write(delta("one"))
        await self.may_end.wait()
        responder.write(delta("two"))
        responder.write(b"data: [DONE]\n\n")
        responder.finish()


def usable(fleet: Fleet) -> set[str]:
    return {w.id.rpartition("/")[0] for w in fleet.frontend.ledger.snapshot().workers if w.usable}


async def post(fleet: Fleet, name: str, port: int, **more: object) -> tuple[int, dict]:
    record = {"name": name, "url": f"http://127.0.0.1:{port}", "kind": "openai", "models": ["m"], **more}
    answer = await fleet.ask("/v1/workers", record, admin=True)
    return answer.status, read(answer.body)


async def test_an_engine_comes_and_goes(fleet: Fleet) -> None:
    await fleet.engine("a")
    await fleet.open()
    held = Held()
    extra = await fleet.engine("extra", answer=held)
    status, answer = await post(fleet, "extra", extra.port, api_key="secret")
    assert (status, answer["state"], answer["front_ends"]) == (201, "registered", {"reached": 1, "missing": []})
    await fleet.until(lambda: usable(fleet) == {"a", "extra"})
    status, answer = await post(fleet, "extra", extra.port, api_key="secret")
    assert (status, answer["origin"]) == (200, "api")

    streams = [asyncio.create_task(fleet.chat()) for _ in range(2)]
    await fleet.until(lambda: extra.running == fleet.frontend.ledger.in_flight == 1)
    assert extra.requests[0].header(b"authorization") == b"Bearer secret"
    listed = read((await fleet.ask("/v1/workers", method="GET", admin=True)).body)
    assert [(e["name"], e["origin"], e["requests"]) for e in listed["engines"]] == [
        ("a", "configuration", 0),
        ("extra", "api", 1),
    ]
    assert [place["origin"] for place in listed["places"]] == ["configuration", "api"]
    assert "secret" not in json.dumps(listed)

    deleted = await fleet.ask("/v1/workers/extra", method="DELETE", admin=True)
    assert (deleted.status, read(deleted.body)["state"]) == (202, "draining")
    assert (await fleet.chat()).status == 200
    assert extra.running == 1
    held.may_end.set()
    answers = await asyncio.gather(*streams)
    assert all(answer.body.endswith(b"data: [DONE]\n\n") for answer in answers)
    await fleet.until(lambda: fleet.frontend.membership.member("extra") is None)
    await fleet.until(lambda: len(fleet.frontend.ledger.snapshot().workers) == 1)
    fleet.at_rest()
    gone = await fleet.ask("/v1/workers/extra", method="DELETE", admin=True)
    assert gone.status == 404


async def test_its_profile_is_known_when_it_joins(fleet: Fleet) -> None:
    await fleet.open()
    extra = await fleet.engine("extra")
    await post(fleet, "extra", extra.port, profile="h100/llama-8b")
    await fleet.until(lambda: usable(fleet) == {"extra"})
    (worker,) = fleet.frontend.ledger.snapshot().workers
    assert worker.times is not None
    assert worker.times.step == load_profile("h100/llama-8b").step


async def test_what_can_not_be_watched_is_not_registered(fleet: Fleet) -> None:
    await fleet.open()
    status, answer = await post(fleet, "x", 1, url="https://127.0.0.1:1", tls={"ca": "/nowhere.pem"})
    assert status == 400
    assert "/nowhere.pem" in answer["error"]["message"]
    listed = read((await fleet.ask("/v1/workers", method="GET", admin=True)).body)
    assert (listed["engines"], listed["refused"]) == ([], [])


async def test_deleted_at_once_its_requests_go_on(fleet: Fleet) -> None:
    await fleet.open()
    held = Held()
    extra = await fleet.engine("extra", answer=held)
    await post(fleet, "extra", extra.port)
    await fleet.until(lambda: usable(fleet) == {"extra"})
    stream = asyncio.create_task(fleet.chat())
    await fleet.until(lambda: extra.running == 1)
    deleted = await fleet.ask("/v1/workers/extra?now=true", method="DELETE", admin=True)
    assert deleted.status == 200
    assert fleet.frontend.ledger.snapshot().workers == ()
    held.may_end.set()
    assert (await stream).body.endswith(b"data: [DONE]\n\n")
    fleet.at_rest()


async def test_drained_and_resumed(fleet: Fleet) -> None:
    await fleet.engine("a")
    await fleet.open()
    drained = await fleet.ask("/v1/workers/a/drain", {"reason": "new firmware", "grace": "5m"}, admin=True)
    assert (drained.status, read(drained.body)["state"]) == (200, "draining")
    (worker,) = fleet.frontend.ledger.snapshot().workers
    assert (worker.usable, worker.reason) == (False, "new firmware")
    listed = read((await fleet.ask("/v1/workers", method="GET", admin=True)).body)
    assert listed["engines"][0]["draining"] == "new firmware"
    resumed = await fleet.ask("/v1/workers/a/resume", admin=True)
    assert resumed.status == 200
    assert usable(fleet) == {"a"}


async def test_drained_without_a_grace(fleet: Fleet) -> None:
    await fleet.engine("a")
    await fleet.open()
    drained = await fleet.ask("/v1/workers/a/drain", {"grace": "0s"}, admin=True)
    assert (drained.status, usable(fleet)) == (200, set())
    drain = fleet.frontend.drains.of("a")
    assert drain is not None
    assert drain.migrates_ms == drain.began_ms


async def test_bad_input(fleet: Fleet) -> None:
    await fleet.engine("a")
    await fleet.open()
    for path, method, sent, status, said in (
        ("/v1/workers", "POST", b"{", 400, "this is no JSON"),
        ("/v1/workers", "POST", {"url": "http://h:1", "weigth": 1}, 400, "did you mean weight?"),
        ("/v1/workers", "POST", {"url": "http://h:1", "name": "a"}, 409, "named by the configuration"),
        ("/v1/workers", "POST", b" " * 70_000, 413, "at most 65536 bytes"),
        ("/v1/workers/a", "DELETE", None, 409, "named by the configuration"),
        ("/v1/workers/nobody", "DELETE", None, 404, "no engine is called 'nobody'; there are a"),
        ("/v1/workers/a?now=maybe", "DELETE", None, 400, "expected true or false"),
        ("/v1/workers/a/drain", "POST", {"grace": "5"}, 400, "grace: expected a duration"),
        ("/v1/workers/a/drain", "POST", {"raeson": "x"}, 400, "raeson"),
        ("/v1/workers/a/drain", "POST", {"reason": ""}, 400, "reason"),
        ("/v1/workers/nobody/drain", "POST", None, 404, "no engine is called"),
        ("/v1/workers/nobody/resume", "POST", None, 404, "no engine is called"),
    ):
        answer = await fleet.ask(path, sent, method=method, admin=True)
        assert (answer.status, said in read(answer.body)["error"]["message"]) == (status, True), answer.body
    assert usable(fleet) == {"a"}
    assert (await fleet.ask("/v1/workers", method="GET")).status == 404  # not for clients


@pytest.mark.parametrize("by_file", [False, True])
async def test_before_any_engine_is_known_nothing_is_said_to_be_not_served(fleet: Fleet, tmp_path, by_file) -> None:
    """A client would not ask again after 404."""
    said, missing = "nobody named an engine so far", tmp_path / "missing.yaml"
    if by_file:
        said = f"engines of file {missing} (No such file"
        await fleet.open(discovery=DiscoverySettings(file=missing, file_interval_s=0.02))
        await fleet.until(lambda: fleet.frontend.engines.statuses()[-1].state is DiscoveryState.LOST)
    else:
        await fleet.open()
    answer = await fleet.chat()
    error = read(answer.body)["error"]
    assert (answer.status, error["code"], said in error["message"]) == (503, "engine_not_reached", True), error


async def test_engines_of_a_file(fleet: Fleet, tmp_path) -> None:
    a, b = await fleet.engine("a"), await fleet.engine("b")
    file = tmp_path / "engines.yaml"

    def put(text: str) -> None:
        new = file.with_suffix(".new")
        new.write_text(text)
        new.replace(file)

    def write(*engines) -> None:
        put(json.dumps([{"url": f"http://127.0.0.1:{e.port}", "name": e.name, "models": ["m"]} for e in engines]))

    write(a)
    fleet.engines = []
    await fleet.open(discovery=DiscoverySettings(file=file, file_interval_s=0.02))
    await fleet.until(lambda: usable(fleet) == {"a"})
    write(a, b)
    await fleet.until(lambda: usable(fleet) == {"a", "b"})
    put("- url: [")
    place = lambda: fleet.frontend.engines.statuses()[-1]  # noqa: E731
    await fleet.until(lambda: place().state is DiscoveryState.LOST)
    status = read((await fleet.ask("/v1/status", method="GET", admin=True)).body)
    assert "this is no valid YAML" in status["discovery"]["places"][-1]["reason"]
    metrics = (await fleet.ask("/metrics", method="GET", admin=True)).body.decode()
    assert 'pointsman_discovery_connected{origin="file"} 0.0' in metrics
    assert 'pointsman_discovery_engines{origin="file"} 2.0' in metrics
    (troubles,) = re.findall(r'^pointsman_discovery_troubles_total{origin="file"} (\S+)$', metrics, re.MULTILINE)
    assert float(troubles) >= 1, "one for each look that found the file so"
    assert (await fleet.chat()).status == 200
    write(b)
    await fleet.until(lambda: usable(fleet) == {"b"})
