"""Handshakes of clients that fail are counted by why, and said, not too often."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import trustme
import uvloop

from pointsman.edge.configuration.tls import Tls
from pointsman.edge.serving.certificates import Certificates
from pointsman.edge.serving.handshakes import Handshakes, Outcome
from pointsman.edge.serving.tls import ListenTls
from pointsman.edge.wire.http1_server import HttpServer
from pointsman.edge.wire.trust import Trusts


class Sides:
    """A port that wants certificates, and clients that come to it."""

    def __init__(self, folder: Path) -> None:
        self.ca, self.clients_ca = trustme.CA(), trustme.CA()
        self.ca.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
        self.clients_ca.cert_pem.write_to_path(folder / "clients.pem")
        server, clients = str(folder / "server.pem"), str(folder / "clients.pem")
        self.listen = ListenTls(Tls(certificate=server, key=server, client_ca=clients))

    def client(self, ca: trustme.CA | None = None, signed_by: trustme.CA | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context()
        (ca or self.ca).configure_trust(context)
        if signed_by is not None:
            signed_by.issue_cert("a@b.c").configure_cert(context)
        return context

    def old(self) -> ssl.SSLContext:
        context = self.client(signed_by=self.clients_ca)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        return context


CLIENTS: dict[Outcome, Callable[[Sides], ssl.SSLContext | None]] = {
    Outcome.DONE: lambda sides: sides.client(signed_by=sides.clients_ca),
    Outcome.NO_CERTIFICATE: lambda sides: sides.client(),
    Outcome.WRONG_CERTIFICATE: lambda sides: sides.client(signed_by=sides.ca),
    Outcome.REFUSED_BY_CLIENT: lambda sides: sides.client(ca=sides.clients_ca, signed_by=sides.clients_ca),
    Outcome.NO_TLS: lambda sides: None,
    Outcome.NOTHING_IN_COMMON: Sides.old,
}


def asked(port: int, context: ssl.SSLContext | None) -> bytes:
    """The beginning of an answer; empty: there is none. Over a socket, which sends alerts; asyncio does not."""
    with (
        suppress(OSError),
        socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
        plain if context is None else context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        connection.sendall(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n")
        return connection.recv(100)
    return b""


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("outcome", CLIENTS)
def test_each_kind_of_end_is_counted(tmp_path: Path, caplog, run, outcome: Outcome) -> None:
    sides = Sides(tmp_path)

    async def check() -> None:
        async def handler(request, responder) -> None:
            responder.send(200, (), b"ok")

        server = HttpServer(handler)
        await server.start("127.0.0.1", 0, ssl=sides.listen.context)
        answer = await asyncio.to_thread(asked, server.port, CLIENTS[outcome](sides))
        async with asyncio.timeout(10):
            while not sides.listen.handshakes.counts:
                await asyncio.sleep(0.01)
        await server.close()
        assert answer.startswith(b"HTTP/1.1 200") == (outcome is Outcome.DONE)

    run(check())
    (counted,) = [metric for metric in Certificates([sides.listen], Trusts()).collect() if metric.samples]
    (sample,) = counted.samples
    assert (sample.name, sample.value) == ("pointsman_tls_handshakes_total", 1)
    assert sample.labels == {"port": "tls", "outcome": str(outcome)}
    said = [r.getMessage() for r in caplog.records if "no TLS connection with a client" in r.getMessage()]
    assert len(said) == (outcome is not Outcome.DONE)
    assert all(line.startswith("control-plane.tls: ") for line in said)


def test_many_failures_are_one_line(caplog) -> None:
    now_ms = 0.0
    handshakes = Handshakes("control-plane.tls", lambda: now_ms)
    for _ in range(3):
        handshakes._heard(ssl.SSLError(1, "what a client sent"))
    assert len(caplog.records) == 1
    now_ms = 10_000.0
    handshakes._heard(ssl.SSLError(1, "what a client sent"))
    assert caplog.records[1].getMessage().endswith("; 3 failed since the last such line")
    assert handshakes.counts == {Outcome.OTHER: 4}
    assert "what a client sent" not in caplog.text
