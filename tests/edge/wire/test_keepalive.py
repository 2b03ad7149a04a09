"""Connections of both sides ask their kernels to look whether the other end is there still."""

from __future__ import annotations

import asyncio
import socket

import pytest

from pointsman.edge.wire.keepalive import UNANSWERED_S, keep_alive
from pointsman.edge.wire.origin import Origin, request_head


def options(transport) -> dict[str, int]:
    sock = transport.get_extra_info("socket")
    names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
    kept = {name: sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names if hasattr(socket, name)}
    return kept | {"SO_KEEPALIVE": sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)}


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux has all of these options")
async def test_clients_and_engines_are_asked_for_but_only_engines_must_take_what_is_sent(wire) -> None:
    seen = []

    async def handler(request, responder) -> None:
        seen.append(options(responder._transport))
        responder.send(200, (), b"")

    server = await wire.serve(handler)
    pool = wire.pool()
    origin = Origin.parse(f"http://127.0.0.1:{server.port}")
    connection = await pool.connect(origin)
    seen.append(options(connection._protocol._transport))
    sink = wire.sink()
    connection.send(request_head(b"GET", b"/", origin, (), 0), b"", sink)
    await sink.wait()
    engines, clients = seen
    for asked in seen:
        assert asked["SO_KEEPALIVE"] == 1
        assert asked["TCP_KEEPIDLE"] + asked["TCP_KEEPINTVL"] * asked["TCP_KEEPCNT"] == UNANSWERED_S
    assert engines["TCP_USER_TIMEOUT"] == UNANSWERED_S * 1000
    assert clients["TCP_USER_TIMEOUT"] == 0, "a client may read as slowly as the write time-out allows"


async def test_sockets_that_know_none_of_it_are_left_alone() -> None:
    one, other = socket.socketpair()
    with one, other:
        one.setblocking(False)
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=one)
        keep_alive(transport, also_unread=True)
        transport.close()
        await asyncio.sleep(0)
