"""Whatever two parties could read differently is refused, and nothing of it reaches a handler."""

from __future__ import annotations

import json

import pytest

POST = b"POST / HTTP/1.1\r\nHost: h\r\n"
GET_NEXT = b"GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n"

CASES = [
    # (name, bytes, status, part of the message)
    (
        "both lengths",
        POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
        "Transfer-Encoding",
    ),
    ("both, turned", CHUNKED + b"Content-Length: 3\r\n\r\n0\r\n\r\n", 400, "Content-Length"),
    ("two equal lengths", POST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400, "Content-Length"),
    ("two lengths", POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc", 400, "Content-Length"),
    ("length list", POST + b"Content-Length: 3, 3\r\n\r\nabc", 400, "Content-Length"),
    ("length +3", POST + b"Content-Length: +3\r\n\r\nabc", 400, "Content-Length"),
    ("length -3", POST + b"Content-Length: -3\r\n\r\nabc", 400, "Content-Length"),
    ("length 0x3", POST + b"Content-Length: 0x3\r\n\r\nabc", 400, "Content-Length"),
    ("length empty", POST + b"Content-Length:\r\n\r\nabc", 400, "Content-Length"),
    ("length 2**80", POST + b"Content-Length: 1208925819614629174706176\r\n\r\n", 400, "Content-Length"),
    ("gzip, chunked", POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400, "transfer-encoding"),
    ("chunked, gzip", POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n", 400, "Transfer-Encoding"),
    ("identity", POST + b"Transfer-Encoding: identity\r\n\r\n", 400, "transfer-encoding"),
    ("xchunked", POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400, "transfer-encoding"),
    ("chunked twice", CHUNKED + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "Transfer-Encoding"),
    ("chunked in quotes", POST + b'Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n', 400, "transfer-encoding"),
    ("chunked on 1.0", b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "transfer-encoding"),
    ("space before colon", POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400, "header"),
    ("vertical tab", POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", 400, "header"),
    ("obs-fold", POST + b"X: a\r\n Content-Length: 3\r\n\r\nabc", 400, "header"),
    ("fold in first field", b"POST / HTTP/1.1\r\n Host: h\r\n\r\n", 400, "start line"),
    ("bare LF", b"POST / HTTP/1.1\nHost: h\n\n", 400, "request line"),
    ("bare LF in fields", b"POST / HTTP/1.1\r\nHost: h\nX: y\r\n\r\n", 400, "header"),
    ("bare CR", POST + b"X: a\rY: b\r\n\r\n", 400, "header"),
    ("NUL in value", POST + b"X: a\0b\r\n\r\n", 400, "header"),
    ("NUL in name", POST + b"X\0: b\r\n\r\n", 400, "header"),
    ("empty name", POST + b": b\r\n\r\n", 400, "header"),
    ("no colon", POST + b"abc\r\n\r\n", 400, "header"),
    ("chunk 0x", CHUNKED + b"\r\n0x3\r\nabc\r\n0\r\n\r\n", 400, "chunk size"),
    ("chunk -1", CHUNKED + b"\r\n-1\r\nabc\r\n0\r\n\r\n", 400, "chunk size"),
    ("chunk empty", CHUNKED + b"\r\n\r\nabc\r\n0\r\n\r\n", 400, "chunk size"),
    ("chunk huge", CHUNKED + b"\r\nfffffffffffffffff\r\nabc", 400, "hunk size"),
    ("chunk too long", CHUNKED + b"\r\n3\r\nabcd\r\n0\r\n\r\n", 400, "body"),
    ("chunk LF", CHUNKED + b"\r\n3\nabc\r\n0\r\n\r\n", 400, "body"),
    ("chunk space", CHUNKED + b"\r\n3 \r\nabc\r\n0\r\n\r\n", 400, "body"),
    ("no host", b"GET / HTTP/1.1\r\n\r\n", 400, "host"),
    ("two hosts", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, "host"),
    ("HTTP/2", b"GET / HTTP/2.0\r\nHost: h\r\n\r\n", 505, "HTTP/2.0"),
    ("HTTP/1.2", b"GET / HTTP/1.2\r\nHost: h\r\n\r\n", 505, "version"),
    ("HTTP/0.9", b"GET /\r\n\r\n", 505, "HTTP/0.9"),
    ("HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "HTTP/2"),
    ("method", b"FOO / HTTP/1.1\r\nHost: h\r\n\r\n", 400, "request line"),
    ("space in target", b"GET /a b HTTP/1.1\r\nHost: h\r\n\r\n", 400, "request line"),
    ("control in target", b"GET /a\x01b HTTP/1.1\r\nHost: h\r\n\r\n", 400, "request line"),
    ("TLS hello", b"\x16\x03\x01\x02\x00\x01\x00", 400, "request line"),
    ("CONNECT", b"CONNECT a:80 HTTP/1.1\r\nHost: h\r\n\r\n", 405, "CONNECT"),
    ("expect", POST + b"Expect: the worst\r\nContent-Length: 1\r\n\r\n", 417, "expect"),
]


@pytest.mark.parametrize(("data", "status", "part"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
async def test_refused(wire, data, status, part):
    handled = []

    async def handler(request, responder):
        handled.append(request)
        responder.send(200, (), b"")

    server = await wire.serve(handler)
    client = await wire.client(server.port)
    client.send(data + GET_NEXT)
    answer = await client.response()
    error = json.loads(answer.body)["error"]
    assert answer.status == status, error
    assert part in error["message"]
    assert error["type"]
    assert answer.headers["connection"] == "close"
    assert await client.rest() == b""
    assert handled == []


@pytest.mark.parametrize(("data", "status", "part"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
async def test_refused_byte_by_byte(offline, data, status, part):
    for i in range(len(data)):
        offline.connection.data_received(data[i : i + 1])
    written = b"".join(offline.transport.written)
    assert written.startswith(b"HTTP/1.1 %d " % status), written
    assert part in json.loads(written.partition(b"\r\n\r\n")[2])["error"]["message"]
    assert written.count(b"\r\ndate: ") == 1
    assert offline.handled == []


async def test_refusal_comes_after_the_answers_before_it(wire):
    async def handler(request, responder):
        responder.send(200, (), b"first")

    server = await wire.serve(handler)
    client = await wire.client(server.port)
    client.send(GET_NEXT + POST + b"Content-Length: x\r\n\r\n" + GET_NEXT)
    assert (await client.response()).body == b"first"
    assert (await client.response()).status == 400
    assert await client.rest() == b""


async def test_trailing_space_after_a_length_is_allowed(wire):
    async def handler(request, responder):
        responder.send(200, (), request.body)

    server = await wire.serve(handler)
    client = await wire.client(server.port)
    client.send(POST + b"Content-Length: 3 \r\n\r\nabc")
    assert (await client.response()).body == b"abc"


@pytest.mark.parametrize("coding", [b"gzip", b"br", b"GZIP", b"gzip, identity", b"x"])
@pytest.mark.parametrize(
    "framing", [b"Content-Length: 3\r\n\r\nabc", b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"]
)
async def test_compressed_bodies_are_refused(wire, coding, framing):
    async def handler(request, responder):
        responder.send(200, (), b"")

    server = await wire.serve(handler)
    client = await wire.client(server.port)
    client.send(POST + b"Content-Encoding: " + coding + b"\r\n" + framing)
    answer = await client.response()
    assert answer.status == 415
    assert "content-encoding" in json.loads(answer.body)["error"]["message"]


async def test_a_body_that_says_it_is_not_compressed_is_taken(wire):
    async def handler(request, responder):
        responder.send(200, (), request.body)

    server = await wire.serve(handler)
    client = await wire.client(server.port)
    client.send(POST + b"Content-Encoding: identity\r\nContent-Length: 3\r\n\r\nabc")
    assert (await client.response()).body == b"abc"
