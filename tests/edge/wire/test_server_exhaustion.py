from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

SERVER = """
import asyncio, resource, sys, uvloop
from pointsman.edge.wire.http1_server import HttpServer

async def handler(request, responder):
    responder.send(200, (), b"ok")

async def main():
    server = HttpServer(handler)
    await server.start("127.0.0.1", 0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
    print(server.port, flush=True)
    await asyncio.Event().wait()

(uvloop if sys.argv[1] == "uvloop" else asyncio).run(main())
"""


@pytest.fixture(params=["uvloop", "asyncio"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    """A server that may open forty files."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, request.param], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.kill()


def ask(client: socket.socket) -> bytes:
    try:
        client.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        return client.recv(1024)[:12]
    except OSError:
        return b""


def connect(port: int, timeout_s: float = 10) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=timeout_s)


def test_running_out_of_file_descriptors_is_survived(port):
    crowd = [connect(port) for _ in range(100)]
    assert ask(crowd[0]) == b"HTTP/1.1 200"
    crowd[-1].settimeout(0.2)
    assert ask(crowd[-1]) == b""
    for client in crowd:
        client.close()
    for _ in range(3):
        with connect(port) as client:
            if ask(client) == b"HTTP/1.1 200":
                return
    pytest.fail("the server did not accept connections again")
