"""Running out of descriptors is told apart from an upstream that can't be reached."""

from __future__ import annotations

import errno
import socket
import subprocess
import sys

import pytest

from pointsman.edge.wire.shortage import is_own_shortage

STARVED = """
import asyncio, os, resource, sys, uvloop
from pointsman.edge.wire.http1_client import Origin, OwnShortageError, UpstreamConnectError, UpstreamPool, request_head
from pointsman.edge.wire.http1_server import HttpServer

class Sink:
    def __init__(self):
        self.done = asyncio.get_running_loop().create_future()
    def on_head(self, status, headers): pass
    def on_data(self, data): pass
    def on_end(self): self.done.set_result(None)
    def on_error(self, error): self.done.set_exception(error)

async def handler(request, responder):
    responder.send(200, (), b"ok")

async def serve():
    servers = [HttpServer(handler) for _ in range(2)]
    for server in servers:
        await server.start("127.0.0.1", 0)
    print(*(server.port for server in servers), flush=True)
    await asyncio.Event().wait()

async def main():
    pool = UpstreamPool()
    async def ask(origin):
        sink = Sink()
        connection = await pool.connect(origin)
        connection.send(request_head(b"GET", b"/", origin, (), 0), b"", sink)
        await sink.done
    first, second = (Origin.parse(f"http://127.0.0.1:{port}") for port in sys.argv[2:])
    await ask(first)
    resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
    taken = []
    def take_all():
        try:
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
    take_all()
    await ask(second)  # in place of the idle one to the first
    print("idle ones make room", pool.open_connections)
    held = await pool.connect(second)
    take_all()
    try:
        await pool.connect(first)
    except OwnShortageError as error:
        print("own shortage:", error)
    for descriptor in taken:
        os.close(descriptor)
    await ask(first)
    print("as before")

uvloop.run(serve() if sys.argv[1] == "serve" else main())
"""


def test_a_pool_without_descriptors_drops_idle_connections_then_says_whose_fault_it_is() -> None:
    command = [sys.executable, "-c", STARVED]
    with subprocess.Popen([*command, "serve"], stdout=subprocess.PIPE, text=True) as upstreams:
        assert upstreams.stdout is not None
        ports = upstreams.stdout.readline().split()
        done = subprocess.run([*command, "ask", *ports], capture_output=True, text=True, timeout=60, check=False)
        upstreams.kill()
    lines = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["idle ones make room 1", "own shortage", "as before"], done
    assert "this front end's fault" in lines[1]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EADDRNOTAVAIL])
def test_own_shortages(number: int) -> None:
    error = RuntimeError("wrapped")
    error.__cause__ = OSError(number, "x")
    assert is_own_shortage(error)


@pytest.mark.parametrize("error", [OSError(errno.ECONNREFUSED, "x"), socket.gaierror(-2, "x"), ValueError("x")])
def test_not_ours(error: Exception) -> None:
    assert not is_own_shortage(error)
