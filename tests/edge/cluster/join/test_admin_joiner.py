"""An engine that tells an admin port of itself."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiohttp
import pytest
import trustme
from aiohttp import web

from pointsman.edge.cluster.join.admin_joiner import AdminJoiner
from pointsman.edge.cluster.join.joining import JoinRecord
from support.log_lines import own_lines
from support.shut_port import shut_port

RECORD = JoinRecord("a:1", "http://a:1", {})


@dataclass
class AdminPort:
    asked: list[tuple[str, str, object, str | None]] = field(default_factory=list)
    status: int = 201
    url: str = ""
    authority: trustme.CA | None = None
    """With https, of it and of whom it lets in."""

    async def serve(self, runner: web.AppRunner) -> None:
        context = None
        if self.authority is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.authority.issue_cert("127.0.0.1").configure_cert(context)
            self.authority.configure_trust(context)
            context.verify_mode = ssl.CERT_REQUIRED
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        scheme = "http" if context is None else "https"
        self.url = f"{scheme}://127.0.0.1:{runner.addresses[0][1]}"

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json() if request.can_read_body else None
        self.asked.append((request.method, request.rel_url.raw_path_qs, body, request.headers.get("authorization")))
        return web.json_response({"error": {"message": "not so"}} if self.status >= 400 else {}, status=self.status)

    async def until(self, count: int) -> None:
        async with asyncio.timeout(8):
            while len(self.asked) < count:
                await asyncio.sleep(0.005)


@pytest.fixture(params=[False])
async def port(request: pytest.FixtureRequest) -> AsyncIterator[AdminPort]:
    made = AdminPort(authority=trustme.CA() if request.param else None)
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", made.answer)
    runner = web.AppRunner(app, access_log=None)
    await made.serve(runner)
    yield made
    await runner.cleanup()


def joiner(session: aiohttp.ClientSession, url: str, ttl_s: int = 15, key: str | None = None) -> AdminJoiner:
    return AdminJoiner(session, url, RECORD.name, RECORD.encoded(), ttl_s, key)


async def test_said_drained_and_left(port: AdminPort, session: aiohttp.ClientSession) -> None:
    one = joiner(session, port.url + "/", key="secret")
    task = asyncio.create_task(one.run())
    await port.until(1)
    await one.say(RECORD.encoded("SIGTERM"))
    task.cancel()
    await one.leave()
    assert port.asked == [
        ("POST", "/v1/workers", {"name": "a:1", "url": "http://a:1", "ttl": "15s"}, "Bearer secret"),
        (
            "POST",
            "/v1/workers",
            {"name": "a:1", "url": "http://a:1", "ttl": "15s", "draining": "SIGTERM"},
            "Bearer secret",
        ),
        ("DELETE", "/v1/workers/a:1?now=true&url=http://a:1", None, "Bearer secret"),
    ]
    await asyncio.gather(task, return_exceptions=True)


async def test_said_again_and_again(
    port: AdminPort, session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    async def sleep(duration_s: float) -> None:
        slept.append(duration_s)
        if len(slept) == 3:
            raise asyncio.CancelledError

    monkeypatch.setattr("pointsman.edge.cluster.join.admin_joiner.asyncio.sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await joiner(session, port.url).run()
    assert slept == [5.0, 5.0, 5.0]
    assert len(port.asked) == 3


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, "status 401: not so; set POINTSMAN_ADMIN_KEY"),
        (409, "status 409: not so"),
        (404, "this is no admin port of a pointsman"),
        (500, "status 500: not so"),
    ],
)
async def test_refused(
    port: AdminPort, session: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture, status: int, said: str
) -> None:
    caplog.set_level("INFO")
    port.status = status
    one = joiner(session, port.url)
    await one.say(RECORD.encoded())
    await one.say(RECORD.encoded())
    assert own_lines(caplog) == [f"not registered at {port.url}: {said}"]
    port.status = 200
    await one.say(RECORD.encoded())
    assert own_lines(caplog)[-1] == f"registered at {port.url}"


async def test_nobody_is_there(session: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture) -> None:
    with shut_port() as shut:
        await joiner(session, f"http://127.0.0.1:{shut}").say(RECORD.encoded())
    assert "connection refused" in caplog.text


@pytest.mark.parametrize("port", [True], indirect=True)
async def test_a_certificate_is_shown_as_it_is_at_that_time(
    port: AdminPort, session: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    assert port.authority is not None
    context = ssl.create_default_context()
    port.authority.configure_trust(context)
    one = AdminJoiner(session, port.url, RECORD.name, RECORD.encoded(), 15, None, lambda: context)
    await one.say(RECORD.encoded())
    assert "or want one: POINTSMAN_ADMIN_CERTIFICATE names the PEM file" in caplog.text
    assert port.asked == []
    context = ssl.create_default_context()
    port.authority.configure_trust(context)
    port.authority.issue_cert("engine@here").configure_cert(context)
    await one.say(RECORD.encoded())
    assert [asked[0] for asked in port.asked] == ["POST"]
