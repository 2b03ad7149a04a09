from __future__ import annotations

import asyncio
import errno
import socket
import ssl

import aiohttp
import msgspec
import pytest
import trustme
from aiohttp import web
from aiohttp.client_reqrep import ConnectionKey

from pointsman.core.model.errors import EngineError
from pointsman.edge.engines.http import EngineCallError, EngineHttp, Trouble, connect_reason, if_there
from pointsman.edge.engines.timed_completion import CompletionClient
from pointsman.edge.wire.trust import Trusts


class Pong(msgspec.Struct):
    n: int


async def trouble_of(call) -> tuple[Trouble, str]:
    with pytest.raises(EngineCallError) as caught:
        await call
    return caught.value.trouble, str(caught.value)


async def test_the_key_goes_with_every_call_and_into_no_message(make_engine, session):
    engine = await make_engine({"/a": {"n": 1}, "/b": {"n": 2}}, key="sesame")
    http = EngineHttp(session, engine.url + "/", api_key="sesame")

    assert (await http.get_json("/a", Pong)).n == 1
    assert (await http.post_json("/b", {"x": 1}, Pong)).n == 2
    assert [asked.authorization for asked in engine.asked] == ["Bearer sesame"] * 2
    assert engine.asked[1].body == {"x": 1}

    wrong = EngineHttp(session, engine.url, api_key="open")
    trouble, message = await trouble_of(wrong.get_text("/a"))
    assert trouble is Trouble.KEY_REFUSED
    assert "wrong" in message
    assert "open" not in message


async def test_an_engine_that_says_which_key_it_refuses_does_not_bring_it_into_the_log(make_engine, session):
    """What canaries and calibration show of such an answer."""
    engine = await make_engine(
        {"/v1/completions": lambda _: web.Response(status=401, text="Incorrect API key provided: open-sesame")}
    )
    answer = await EngineHttp(session, engine.url, api_key="open-sesame").post_stream(
        "/v1/completions", {}, lambda data: None, limit_s=10
    )
    assert (answer.status, answer.start) == (401, b"Incorrect API key provided: ***********")
    asker = CompletionClient(session, engine.url, "m", api_key="open-sesame")
    with pytest.raises(EngineError, match=r"provided: \*{11}$"):
        await asker.ask("hello", 1)


async def test_without_a_key_the_message_says_what_to_give(make_engine, session):
    engine = await make_engine({"/a": {"n": 1}}, key="sesame")

    trouble, message = await trouble_of(EngineHttp(session, engine.url).get_json("/a", Pong))

    assert trouble is Trouble.KEY_REFUSED
    assert "give the engine's api_key_env (or api_key)" in message


async def test_a_redirect_is_not_followed(make_engine, session):
    other = await make_engine({"/a": {"n": 1}})

    def moved(_body):
        return web.Response(status=307, headers={"Location": other.url + "/a"})

    engine = await make_engine({"/a": moved}, key="sesame")

    trouble, message = await trouble_of(EngineHttp(session, engine.url, api_key="sesame").get_json("/a", Pong))

    assert trouble is Trouble.REDIRECTED
    assert other.url in message
    assert other.asked == []


@pytest.mark.parametrize(
    ("answer", "trouble"),
    [
        ("<html>hello</html>", Trouble.MALFORMED),
        ({"n": "many"}, Trouble.MALFORMED),
        ([1], Trouble.MALFORMED),
        (404, Trouble.NOT_THERE),
        (501, Trouble.NOT_THERE),
        (403, Trouble.KEY_REFUSED),
        (503, Trouble.NOT_READY),
        (500, Trouble.BAD_STATUS),
        ("x" * 2000, Trouble.MALFORMED),
    ],
)
async def test_what_is_wrong_with_an_answer(make_engine, session, answer, trouble):
    engine = await make_engine({"/a": answer})
    http = EngineHttp(session, engine.url, max_body_bytes=1000)

    found, message = await trouble_of(http.get_json("/a", Pong))

    assert found is trouble
    assert "/a" in message


async def test_a_hanging_engine_is_given_up(make_engine, session):
    engine = await make_engine({"/a": "hang"})

    trouble, message = await trouble_of(EngineHttp(session, engine.url, timeout_s=0.05).get("/a"))

    assert trouble is Trouble.TIMED_OUT
    assert "0.05 s" in message


async def test_nobody_listens(session, unused_tcp_port):
    http = EngineHttp(session, f"http://127.0.0.1:{unused_tcp_port}")

    with pytest.raises(
        EngineCallError, match=r"cannot connect to http://127\.0\.0\.1:\d+: connection refused$"
    ) as caught:
        await http.get("/a")

    assert caught.value.trouble is Trouble.UNREACHABLE
    assert not caught.value.reachable


@pytest.mark.parametrize("url", ["http://", "http://[", "nonsense", "http://127.0.0.1:99999"])
async def test_an_address_that_is_none(session, url):
    trouble, _ = await trouble_of(EngineHttp(session, url).get("/a"))

    assert trouble is Trouble.UNREACHABLE


@pytest.mark.parametrize(
    "reply", [b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", b""]
)
async def test_what_answers_is_not_http(session, reply):
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        trouble, _ = await trouble_of(EngineHttp(session, f"http://{host}:{port}").get("/a"))

    assert trouble in (Trouble.MALFORMED, Trouble.UNREACHABLE)


async def test_https_with_a_private_authority(make_engine, session):
    authority = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    engine = await make_engine({"/a": {"n": 1}}, ssl_context=server)

    trust = Trusts(context=client).of_url(engine.url)
    assert (await EngineHttp(session, engine.url, trust=trust).get_json("/a", Pong)).n == 1

    trouble, message = await trouble_of(EngineHttp(session, engine.url).get("/a"))
    assert trouble is Trouble.UNREACHABLE
    assert "its certificate is not trusted (" in message
    assert "control-plane.engine_tls.ca" in message
    assert "ssl:" not in message


async def test_https_where_plain_http_is_spoken(make_engine, session):
    engine = await make_engine({"/a": {"n": 1}})

    trouble, message = await trouble_of(EngineHttp(session, engine.url.replace("http:", "https:")).get("/a"))

    assert trouble is Trouble.UNREACHABLE
    assert "no TLS connection comes about" in message
    assert "ssl:" not in message


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 1)"), "connection refused"),
        (OSError("Multiple exceptions: [a], [b]"), "multiple exceptions: [a], [b]"),
        (socket.gaierror(-2, "Name or service not known"), "name or service not known"),
        (ssl.SSLError(1, "no TLS at all"), "no TLS connection comes about"),
    ],
)
def test_why_a_connection_fails_is_told_without_wrapping(cause, reason):
    key = ConnectionKey("127.0.0.1", 1, False, True, None, None, None)

    assert connect_reason(aiohttp.ClientConnectorError(key, cause)).startswith(reason)


async def test_if_there_tells_no_such_route_from_no_answer(make_engine, session):
    engine = await make_engine({"/a": {"n": 1}, "/loading": 503})
    http = EngineHttp(session, engine.url)

    assert await if_there(http.get_json("/a", Pong)) == Pong(1)
    assert await if_there(http.get_json("/b", Pong)) is None
    with pytest.raises(EngineCallError, match="not ready"):
        await if_there(http.get_json("/loading", Pong))


async def test_a_session_that_is_closed_is_the_callers_fault_not_the_engines():
    client = aiohttp.ClientSession()
    await client.close()

    with pytest.raises(RuntimeError):
        await EngineHttp(client, "http://127.0.0.1:1").get("/a")


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
async def test_without_descriptors_here_nothing_is_known_of_the_engine(make_engine, session, monkeypatch, number):
    engine = await make_engine({"/a": {"n": 1}})
    http = EngineHttp(session, engine.url)

    async def no_room(*args: object, **options: object) -> None:
        raise OSError(number, "no room")

    with monkeypatch.context() as patch:
        patch.setattr("aiohttp.connector.aiohappyeyeballs.start_connection", no_room)
        trouble, _ = await trouble_of(http.get_json("/a", Pong))
    assert trouble is Trouble.NOT_ASKED
    assert (await http.get_json("/a", Pong)).n == 1
