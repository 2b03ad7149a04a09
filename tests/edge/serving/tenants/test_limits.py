"""Limits of tenants, keys and models: what is refused, what is charged, and that each kind of end gives all back."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from pointsman.edge.configuration.keys_file import KeysFile
from pointsman.edge.configuration.loader import load_text
from pointsman.edge.configuration.tenants import Tenants
from pointsman.edge.serving.tenants.limit_headers import _duration
from pointsman.edge.serving.tenants.tenancy import TenancySettings
from support.scripted_fleet import DONE, SSE, Fleet, delta, hang, stream_three, usage_event

from .conftest import keys_text

ACME = [(b"x-tenant-id", b"acme")]


def tenants(text: str) -> Tenants:
    return load_text(text, "t.yaml", Tenants)


async def open_with(fleet: Fleet, text: str, keys_file: Path | None = None, **settings):
    if not fleet.engines:
        await fleet.engine("a")
    return await fleet.open(tenancy=TenancySettings(keys_file, tenants(text)), **settings)


def account(fleet: Fleet, subject: str = "tenant:acme"):
    found = fleet.frontend.tenancy.book.get(subject)
    assert found is not None
    return found


def nothing_held(fleet: Fleet) -> None:
    fleet.at_rest()
    for each in fleet.frontend.tenancy.book:
        assert (each.running, each.own.reserved) == (0, 0), each.subject


async def test_beyond_a_limit_is_a_429_that_says_when(fleet: Fleet) -> None:
    frontend = await open_with(fleet, "named: {acme: {requests_per_minute: 2}}")
    first = await fleet.chat(headers=ACME)
    assert first.header(b"x-ratelimit-limit-requests") == b"2"
    assert first.header(b"x-ratelimit-remaining-requests") == b"1"
    assert first.header(b"x-ratelimit-limit-tokens") is None
    await fleet.chat(headers=ACME)
    refused = await fleet.chat(headers=ACME)
    error = json.loads(refused.body)["error"]
    assert refused.status == 429
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert "the limit of tenant acme is reached: 2 requests a minute; this request would pass in " in error["message"]
    wait_ms = int(refused.header(b"retry-after-ms") or 0)
    assert 20_000 < wait_ms <= 30_000
    assert int(refused.header(b"retry-after") or 0) == -(-wait_ms // 1000)
    assert refused.header(b"x-ratelimit-remaining-requests") == b"0"
    assert frontend.tenancy.counts.limited == {("acme", "requests"): 1}
    assert (await fleet.chat(headers=[(b"x-tenant-id", b"other")])).status == 200
    nothing_held(fleet)


async def test_tokens_are_charged_as_the_engine_counts_them(fleet: Fleet) -> None:
    await open_with(fleet, "default: {tokens_per_minute: 60000}")
    for _ in range(3):
        assert (await fleet.chat(headers=ACME)).status == 200
    assert account(fleet).own.tokens == 3 * (10 + 3)
    assert fleet.frontend.tenancy.counts.tokens == {"acme": 39}
    assert 59_950 < account(fleet).levels(fleet.frontend.tenancy.clock())[1] <= 60_000
    nothing_held(fleet)


async def test_a_tenant_in_debt_waits_until_it_is_paid(fleet: Fleet) -> None:
    async def many(incoming, responder) -> None:
        responder.start(200, SSE)
        responder.write(delta("x") + usage_event(100, 5000) + DONE)
        responder.finish()

    await fleet.engine("a", answer=many)
    await open_with(fleet, "default: {tokens_per_minute: 1000}")
    assert (await fleet.chat(headers=ACME)).status == 200
    refused = await fleet.chat(headers=ACME)
    assert refused.status == 429
    assert "1000 tokens a minute" in json.loads(refused.body)["error"]["message"]
    assert 5 * 60 < int(refused.header(b"retry-after") or 0) <= 307, "debt, and what it wants itself"
    assert refused.header(b"x-ratelimit-remaining-tokens") == b"0"
    nothing_held(fleet)


async def refuses(incoming, responder) -> None:
    responder.send(400, [], b"no")


async def breaks(incoming, responder) -> None:
    responder.send(500, [], b"oops")


async def cuts(incoming, responder) -> None:
    responder.abort()


async def cuts_later(incoming, responder) -> None:
    responder.start(200, SSE)
    responder.write(delta("one"))
    await asyncio.sleep(0.01)
    responder.abort()


ENDS = {
    "finished": (stream_three, 200),
    "refused by the engine": (refuses, 400),
    "failed by the engine": (breaks, 500),
    "cut before the first byte": (cuts, 502),
    "cut in its stream": (cuts_later, 200),
}


@pytest.mark.parametrize(("answer", "status"), ENDS.values(), ids=ENDS.keys())
async def test_each_kind_of_end_gives_back_what_was_held(fleet: Fleet, answer, status) -> None:
    await fleet.engine("a", answer=answer)
    await open_with(fleet, "default: {concurrency: 1, tokens_per_minute: 1000000}")
    statuses = [(await fleet.chat(headers=ACME)).status for _ in range(3)]
    assert statuses[0] == status
    assert 429 not in statuses, "the one before is still held"
    assert status >= 500 or set(statuses) <= {status, 503}, "503: the engine is left out by then"
    nothing_held(fleet)


async def test_a_client_that_leaves_gives_its_place_back_and_pays_for_what_came(fleet: Fleet) -> None:
    async def two_then_nothing(incoming, responder) -> None:
        responder.start(200, SSE)
        responder.write(delta("one"))
        responder.write(delta("two"))
        await asyncio.Event().wait()

    engine = await fleet.engine("a", answer=two_then_nothing)
    await open_with(fleet, "default: {concurrency: 1, tokens_per_minute: 1000000}")
    asking = asyncio.create_task(fleet.chat(headers=ACME))
    await fleet.until(lambda: engine.running == 1)
    busy = await fleet.chat(headers=ACME)
    assert (busy.status, busy.header(b"retry-after")) == (429, b"1")
    assert "1 requests at the same time" in json.loads(busy.body)["error"]["message"]
    await fleet.until(lambda: any(relay.events == 2 for _, relay in fleet.frontend.dispatcher.streams()))
    asking.cancel()
    await fleet.until(lambda: account(fleet).running == 0)
    record = next(iter(fleet.frontend.decisions))
    assert (record.status, record.events) == ("cancelled", 2)
    assert account(fleet).own.tokens == record.request.prompt_tokens + 2
    nothing_held(fleet)


async def test_what_never_reached_an_engine_costs_nothing(fleet: Fleet) -> None:
    engine = await fleet.engine("a")
    await open_with(fleet, "default: {requests_per_minute: 100, tokens_per_minute: 100000}")
    await engine.close()
    await fleet.until(lambda: not any(worker.usable for worker in fleet.frontend.ledger.snapshot().workers))
    answer = await fleet.chat(headers=ACME)
    assert answer.status == 503
    assert (account(fleet).own.requests, account(fleet).own.tokens) == (0, 0)
    nothing_held(fleet)


async def test_an_engine_that_cannot_be_connected_to_costs_nothing(fleet: Fleet) -> None:
    """Also before anybody has noticed: else an outage eats what its victims may ask."""
    engine = await fleet.engine("a")
    await open_with(fleet, "default: {requests_per_minute: 100, tokens_per_minute: 100000}", heartbeat_s=60)
    await engine.close()
    answer = await fleet.chat(headers=ACME)
    assert answer.status >= 500
    assert next(iter(fleet.frontend.decisions)).attempts > 0
    assert (account(fleet).own.requests, account(fleet).own.tokens) == (0, 0)
    nothing_held(fleet)


async def test_a_client_that_leaves_before_anything_was_sent_pays_nothing(fleet: Fleet, monkeypatch) -> None:
    await fleet.engine("a")
    frontend = await open_with(fleet, "default: {requests_per_minute: 100, tokens_per_minute: 100000}")
    connecting = asyncio.Event()

    async def connects_for_ever(*args, **kwargs) -> None:
        connecting.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(frontend.pool, "idle_connection", lambda origin: None)
    monkeypatch.setattr(frontend.pool, "connect", connects_for_ever)
    asking = asyncio.create_task(fleet.chat(headers=ACME))
    await connecting.wait()
    asking.cancel()
    await fleet.until(lambda: account(fleet).running == 0)
    assert (account(fleet).own.requests, account(fleet).own.tokens) == (0, 0)
    nothing_held(fleet)


async def test_an_engine_that_counts_below_nothing_gives_nothing_back(fleet: Fleet) -> None:
    says = [b"", usage_event(-5000, 3), usage_event(10**30, 3), usage_event(10, 2**63)]

    async def lies(incoming, responder) -> None:
        responder.start(200, SSE)
        responder.write(delta("x") + says.pop(0) + DONE)
        responder.finish()

    await fleet.engine("a", answer=lies)
    await open_with(fleet, "default: {tokens_per_minute: 100000}")
    while says:
        before = account(fleet).own.tokens if fleet.frontend.traffic.responses else 0
        assert (await fleet.chat(headers=ACME)).status == 200
        assert 0 < account(fleet).own.tokens - before < 20, "it is charged by what came, as without usage"
    nothing_held(fleet)


async def test_what_several_engines_tried_is_charged_once(fleet: Fleet) -> None:
    dead = await fleet.engine("a")
    await fleet.engine("b")
    await open_with(fleet, "default: {requests_per_minute: 100, tokens_per_minute: 100000}", heartbeat_s=60)
    await dead.close()
    for _ in range(2):
        assert (await fleet.chat(headers=ACME)).status == 200
    assert (account(fleet).own.requests, account(fleet).own.tokens) == (2, 26)
    nothing_held(fleet)


async def test_a_bad_request_is_not_charged(fleet: Fleet) -> None:
    await open_with(fleet, "default: {requests_per_minute: 1}")
    assert (await fleet.chat(headers=ACME, model="nope")).status == 404
    assert (await fleet.chat(headers=ACME)).status == 200
    assert (await fleet.chat(headers=ACME)).status == 429


async def test_models_and_keys_have_limits_of_their_own(fleet: Fleet, tmp_path: Path) -> None:
    await fleet.engine("a", models=("m", "big"))
    path = tmp_path / "k.yaml"
    path.write_text(keys_text().replace("{id: a2,", "{id: a2, limits: {requests_per_minute: 1},"))
    await open_with(fleet, "named: {acme: {models: {big: {requests_per_minute: 1}}}}", path)
    one, two = [(b"authorization", b"Bearer key-of-acme-one")], [(b"authorization", b"Bearer key-of-acme-two")]
    assert [(await fleet.chat(headers=two)).status for _ in range(2)] == [200, 429]
    assert [(await fleet.chat(headers=one)).status for _ in range(3)] == [200, 200, 200]
    assert (await fleet.chat(headers=one, model="big")).status == 200
    refused = await fleet.chat(headers=one, model="big")
    assert "model big of tenant acme" in json.loads(refused.body)["error"]["message"]
    nothing_held(fleet)


async def test_status_shows_what_is_used(fleet: Fleet) -> None:
    frontend = await open_with(fleet, "default: {requests_per_minute: 10, concurrency: 3}")
    began_s = time.monotonic()
    await fleet.chat(headers=ACME)
    await fleet.chat()
    report = frontend.status().tenants
    assert report is not None
    assert {each.subject for each in report.accounts} == {"tenant acme", "tenant anonymous"}
    assert report.accounts[0].requests is not None
    assert 9 <= report.accounts[0].requests.left <= min(10.0, 9.01 + (time.monotonic() - began_s) / 6)
    assert (report.accounts[0].concurrency, report.accounts[0].running, report.keys, report.more) == (3, 0, None, 0)


async def test_an_engines_own_limits_are_not_the_clients(fleet: Fleet) -> None:
    async def limited(incoming, responder) -> None:
        headers = [*SSE, (b"x-ratelimit-remaining-requests", b"7"), (b"set-cookie", b"a=b")]
        responder.send(200, headers, delta("x") + DONE)

    await fleet.engine("a", answer=limited)
    await open_with(fleet, "default: {concurrency: 3}")
    answer = await fleet.chat()
    assert answer.header(b"x-ratelimit-remaining-requests") is None
    assert answer.header(b"set-cookie") is None


async def test_reload_puts_other_limits_in_force(fleet: Fleet) -> None:
    engine = await fleet.engine("a", answer=hang)
    frontend = await open_with(fleet, "default: {concurrency: 1}")
    asking = [asyncio.create_task(fleet.chat(headers=ACME))]
    await fleet.until(lambda: engine.running == 1)
    assert (await fleet.chat(headers=ACME)).status == 429
    await frontend.tenancy.reload(TenancySettings(None, tenants("default: {concurrency: 2}")))
    asking.append(asyncio.create_task(fleet.chat(headers=ACME)))
    await fleet.until(lambda: engine.running == 2)
    assert (await fleet.chat(headers=ACME)).status == 429
    await frontend.tenancy.reload(TenancySettings())
    asking.append(asyncio.create_task(fleet.chat(headers=ACME)))
    await fleet.until(lambda: engine.running == 3)
    for task in asking:
        task.cancel()
    await fleet.until(lambda: frontend.ledger.in_flight == 0)
    await fleet.until(lambda: all(each.running == 0 for each in frontend.tenancy.book))


async def test_what_streams_came_to_is_told_while_they_run(fleet: Fleet) -> None:
    """So that it is not lost with a front end that dies."""

    async def two_then_nothing(incoming, responder) -> None:
        responder.start(200, SSE)
        responder.write(delta("one"))
        responder.write(delta("two"))
        await asyncio.Event().wait()

    await fleet.engine("a", answer=two_then_nothing)
    frontend = await open_with(fleet, "default: {tokens_per_minute: 1000000}")
    frontend.tenancy.gate.changed = lambda: None
    asking = asyncio.create_task(fleet.chat(headers=ACME))
    await fleet.until(lambda: any(relay.events == 2 for _, relay in frontend.dispatcher.streams()))
    for _ in range(2):
        frontend.tenancy.look()
        (record,) = frontend.decisions
        assert account(fleet).own.delivered == record.request.prompt_tokens + 2
    asking.cancel()
    await fleet.until(lambda: account(fleet).running == 0)
    assert account(fleet).own.delivered == 0
    assert account(fleet).own.tokens == record.request.prompt_tokens + 2
    nothing_held(fleet)


def test_limits_of_keys_alone_are_in_force_too() -> None:
    file = load_text(keys_text().replace("{id: a2,", "{id: a2, limits: {concurrency: 1},"), "k.yaml", KeysFile)
    assert [key.limits is not None for key in file.keys] == [False, True, False]


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, b"0ms"), (20, b"20ms"), (1500, b"1.500s"), (60_000, b"1m0s"), (360_000, b"6m0s"), (61_250, b"1m1.250s")],
)
def test_resets_are_written_as_openai_does(ms, text) -> None:
    assert _duration(ms) == text


async def test_a_stream_that_goes_on_elsewhere_is_charged_once(fleet: Fleet) -> None:
    broke = False

    async def breaks_the_first_time(incoming, responder) -> None:
        nonlocal broke
        if broke:
            await stream_three(incoming, responder)
            return
        broke = True
        responder.start(200, SSE)
        responder.write(delta("one"))
        await asyncio.sleep(0.01)
        responder.abort()

    for name in "ab":
        await fleet.engine(name, answer=breaks_the_first_time)
    await open_with(fleet, "default: {requests_per_minute: 100, tokens_per_minute: 100000, concurrency: 1}")
    answer = await fleet.chat(headers=ACME, temperature=0)
    record = next(iter(fleet.frontend.decisions))
    assert answer.body.endswith(DONE)
    assert (record.status, record.migrations, record.attempts) == ("finished", 1, 2)
    assert (account(fleet).own.requests, account(fleet).own.tokens) == (1, 13)
    nothing_held(fleet)
