"""TLS on both sides: rotation while it runs, certificates of clients, and what is said when something is wrong."""

from __future__ import annotations

import asyncio
import datetime
import itertools
import os
import random
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme
import uvloop

from pointsman.core.model.errors import ConfigError
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.cluster.prober import Prober
from pointsman.edge.configuration.loader import load_text
from pointsman.edge.configuration.tls import EngineTls, Tls
from pointsman.edge.configuration.tree import ConfigTree
from pointsman.edge.serving import certificates as certificates_module
from pointsman.edge.serving.certificates import Certificates
from pointsman.edge.serving.frontend import Frontend
from pointsman.edge.serving.settings import FrontendSettings
from pointsman.edge.serving.tls import ListenTls
from pointsman.edge.wire.http1_server import HttpServer
from pointsman.edge.wire.trust import Trusts
from support.scripted_fleet import Engine


class Pki:
    """Authorities and certificates in files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = trustme.CA()
        self.other_ca = trustme.CA()
        self._writes = itertools.count()

    def authority(self, name: str, *authorities: trustme.CA) -> str:
        path = self.folder / name
        path.write_bytes(b"".join(ca.cert_pem.bytes() for ca in authorities))
        return str(path)

    def issue(self, name: str, *hosts: str, ca: trustme.CA | None = None, **kwargs: Any) -> tuple[str, str]:
        made = (ca or self.ca).issue_cert(*hosts, **kwargs)
        chain, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        chain.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        key.write_bytes(made.private_key_pem.bytes())
        # The clock of files may stand for some milliseconds, in which a fast machine writes twice.
        moment_ns = time.time_ns() + next(self._writes)
        for path in (chain, key):
            os.utime(path, ns=(moment_ns, moment_ns))
        return str(chain), str(key)

    def listening(self, *hosts: str, name: str = "server", **fields: Any) -> Tls:
        certificate, key = self.issue(name, *(hosts or ("localhost", "127.0.0.1")))
        return Tls(certificate=certificate, key=key, **fields)

    def client(self, certificate: tuple[str, str] | None = None, ca: trustme.CA | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context()
        (ca or self.ca).configure_trust(context)
        if certificate is not None:
            context.load_cert_chain(*certificate)
        return context


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path)


async def health(port: int, context: ssl.SSLContext, path: str = "/health") -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"https://localhost:{port}{path}", ssl=context) as answer,
    ):
        return answer.status


async def serial(port: int, context: ssl.SSLContext) -> str:
    """Of the certificate that a new connection gets."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
    try:
        return str(writer.get_extra_info("peercert")["serialNumber"])
    finally:
        writer.close()
        await writer.wait_closed()


@pytest.fixture
async def open_front_end() -> AsyncIterator[Any]:
    async with AsyncExitStack() as stack:

        async def open_it(**settings: Any) -> Frontend:
            frontend = Frontend(replace(FrontendSettings(port=0, admin_port=0, heartbeat_s=0.5, seed=1), **settings))
            await frontend.start()
            stack.push_async_callback(frontend.close)
            return frontend

        yield open_it


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


class TestListening:
    async def test_a_new_certificate_is_used_without_a_restart(self, open_front_end, pki: Pki) -> None:
        tls = pki.listening()
        frontend = await open_front_end(tls=ListenTls(tls))
        await frontend.certificates.look()
        port, client = port_of(frontend.url), pki.client()
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname="localhost")
        before = await serial(port, client)
        pki.listening()
        await frontend.certificates.look()
        assert await serial(port, client) != before
        writer.write(b"GET /health HTTP/1.1\r\nhost: h\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200"), "a connection that exists goes on"
        writer.close()
        assert frontend.certificates.reloads == {"read": 1}

    @pytest.mark.parametrize("damage", ["", "rubbish", None, "another key"])
    async def test_a_broken_file_keeps_the_old_certificate_loudly(
        self, open_front_end, pki: Pki, damage, caplog
    ) -> None:
        tls = pki.listening()
        frontend = await open_front_end(tls=ListenTls(tls))
        await frontend.certificates.look()
        port, client = port_of(frontend.url), pki.client()
        before = await serial(port, client)
        if damage is None:
            Path(tls.certificate).unlink()
        elif damage == "another key":
            Path(tls.key).write_bytes(pki.ca.issue_cert("x").private_key_pem.bytes())
        else:
            Path(tls.certificate).write_text(damage)
        await frontend.certificates.look()
        await frontend.certificates.look()
        assert await serial(port, client) == before
        assert caplog.text.count("the certificates read before stay in force: control-plane.tls: can't use") == 1
        assert frontend.certificates.reloads == {"broken": 1}
        assert "can't use certificate" in frontend.status().certificate_faults[0]
        pki.listening()
        await frontend.certificates.look()
        assert frontend.certificates.faults == ()
        assert await serial(port, client) != before

    async def test_clients_need_a_certificate_of_the_right_authority(self, open_front_end, pki: Pki) -> None:
        tls = pki.listening(client_ca=pki.authority("clients.pem", pki.other_ca))
        frontend = await open_front_end(tls=ListenTls(tls))
        port = port_of(frontend.url)
        good = pki.client(pki.issue("good", "a@b.c", ca=pki.other_ca))
        assert await health(port, good) == 200
        for context in (pki.client(), pki.client(pki.issue("bad", "a@b.c", ca=pki.ca))):
            with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
                await health(port, context)

    async def test_certificates_may_be_optional_but_never_wrong(self, open_front_end, pki: Pki) -> None:
        authority = pki.authority("clients.pem", pki.other_ca)
        tls = pki.listening(client_ca=authority, client_certificates="optional")
        frontend = await open_front_end(tls=ListenTls(tls))
        port = port_of(frontend.url)
        assert await health(port, pki.client()) == 200
        with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
            await health(port, pki.client(pki.issue("bad", "a@b.c", ca=pki.ca)))

    async def test_the_admin_port_has_its_own(self, open_front_end, pki: Pki) -> None:
        frontend = await open_front_end(admin_tls=ListenTls(pki.listening(), "control-plane.admin_tls"))
        assert frontend.admin_url.startswith("https://")
        assert frontend.url.startswith("http://")
        assert await health(port_of(frontend.admin_url), pki.client(), "/metrics") == 200

    def test_what_can_not_be_used_is_named(self, pki: Pki) -> None:
        tls = pki.listening()
        with pytest.raises(ConfigError, match=r"control-plane\.tls: can't use certificate '/no' .*No such file"):
            ListenTls(Tls(certificate="/no", key=tls.key))
        with pytest.raises(ConfigError, match="the key belongs to another certificate"):
            ListenTls(Tls(certificate=tls.certificate, key=pki.issue("other", "x")[1]))
        with pytest.raises(ConfigError, match=r"client_ca: can't use '/no': No such file"):
            ListenTls(Tls(certificate=tls.certificate, key=tls.key, client_ca="/no"))


class TestCertificates:
    """The watch misses no change, and drops what is needed no more."""

    async def test_what_changed_before_the_first_look_is_read(self, pki: Pki) -> None:
        listen = ListenTls(pki.listening())
        certificates, read_at_the_start = Certificates([listen], Trusts()), listen._newest
        pki.listening()
        await certificates.look()
        assert listen._newest is not read_at_the_start
        assert certificates.reloads == {}, "nobody saw a change"

    @pytest.mark.parametrize("engine", ["comes", "leaves"])
    async def test_a_change_while_an_engine_comes_or_leaves_is_read(self, pki: Pki, engine: str) -> None:
        own = EngineTls(ca=pki.authority("own.pem", pki.ca))
        trusts = Trusts()
        if engine == "leaves":
            trusts.use("https://a", own)
        certificates = Certificates([ListenTls(pki.listening())], trusts)
        await certificates.look()
        pki.listening()
        trusts.use("https://a", own if engine == "comes" else None)
        await certificates.look()
        assert certificates.reloads == {"read": 1}

    async def test_files_of_an_engine_that_left_are_no_fault(self, pki: Pki) -> None:
        trusts = Trusts()
        for host in "ab":
            trusts.use(f"https://{host}", EngineTls(ca=pki.authority(f"{host}.pem", pki.ca)))
        certificates = Certificates([], trusts)
        await certificates.look()
        (pki.folder / "a.pem").unlink()
        await certificates.look()
        assert len(certificates.faults) == 1
        trusts.forget("https://a")
        assert trusts.files() == [pki.folder / "b.pem"]
        await certificates.look()
        assert certificates.faults == ()

    async def test_a_prober_forgets_the_trust_of_an_engine_that_left(self, pki: Pki) -> None:
        trusts = Trusts()
        own = EngineTls(ca=pki.authority("own.pem", pki.ca))
        async with Prober(lambda event: None, lambda: 0.0, random.Random(1), trusts=trusts) as prober:
            await prober.start([WorkerSource(name="a", url="https://127.0.0.1:9", tls=own)])
            assert trusts.files() == [pki.folder / "own.pem"]
            await prober.remove("a")
        assert trusts.files() == []

    async def test_those_for_etcd_are_watched_too(self, open_front_end, pki: Pki) -> None:
        certificate, key = pki.issue("us", "us@here")
        text = f"etcd: {{endpoints: ['https://127.0.0.1:9'], certificate: {certificate}, key: {key}}}\n"
        text += "discovery: {etcd: true}\nreplicas: {listen: 'tcp://127.0.0.1:0', etcd: true}\n"
        settings = FrontendSettings.of(load_text(text, "c.yaml", ConfigTree))
        trusts = settings.etcd_trusts
        assert len(trusts) == 2
        frontend = await open_front_end(discovery=settings.discovery, replicas=settings.replicas)
        before = [trust.context for trust in trusts]
        Path(key).write_text("half")
        await frontend.certificates.look()
        (fault,) = frontend.status().certificate_faults
        assert fault.startswith(f"etcd: can't use certificate '{certificate}' with key '{key}'")
        assert [trust.context for trust in trusts] == before
        pki.issue("us", "us@here")
        await frontend.certificates.look()
        assert frontend.status().certificate_faults == []
        assert not {id(trust.context) for trust in trusts} & {id(context) for context in before}

    async def test_the_watch_outlives_what_nobody_expected(self, pki: Pki, monkeypatch, caplog) -> None:
        listen, looks = ListenTls(pki.listening()), 0

        def fails() -> None:
            nonlocal looks
            looks += 1
            if looks == 1:
                raise ZeroDivisionError("what it says")

        monkeypatch.setattr(certificates_module, "LOOK_EVERY_S", 0.01)
        monkeypatch.setattr(listen, "renew", fails)
        certificates = Certificates([listen], Trusts())
        certificates.start()
        async with asyncio.timeout(30):
            while not certificates.faults:
                await asyncio.sleep(0.01)
            assert "ZeroDivisionError" in certificates.faults[0]
            pki.listening()
            while certificates.faults:
                await asyncio.sleep(0.01)
        await certificates.close()


def test_an_authority_that_was_removed_is_trusted_no_more_under_uvloop(pki: Pki) -> None:
    """uvloop has TLS code of its own. A session begun before must not outlive the authority, either."""

    async def run() -> None:
        authorities = pki.authority("clients.pem", pki.ca, pki.other_ca)
        listen = ListenTls(pki.listening(client_ca=authorities))

        async def handler(request, responder) -> None:
            responder.send(200, (), b"ok")

        server = HttpServer(handler)
        await server.start("127.0.0.1", 0, ssl=listen.context)
        old = pki.client(pki.issue("old", "a@b.c", ca=pki.other_ca))
        new = pki.client(pki.issue("new", "a@b.c"))
        assert await health(server.port, old) == await health(server.port, new) == 200
        before = await serial(server.port, new)
        pki.authority("clients.pem", pki.ca)
        pki.listening()
        listen.renew()
        assert await health(server.port, new) == 200
        assert await serial(server.port, new) != before
        with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
            await health(server.port, old)
        assert listen.handshakes.counts["done"] >= 5
        await server.close()

    uvloop.run(run())


class TestEngines:
    @pytest.fixture
    async def engine(self) -> AsyncIterator[Any]:
        async with AsyncExitStack() as stack:

            async def start(tls: ListenTls) -> Engine:
                engine = Engine("a")
                engine.server = HttpServer(engine._handle)
                await engine.server.start("127.0.0.1", 0, ssl=tls.context)
                stack.push_async_callback(engine.close)
                return engine

            yield start

    @staticmethod
    async def told(frontend: Frontend, words: str) -> None:
        """Until this is said of why the engine is no worker; before, it may just have been too slow for a probe."""
        async with asyncio.timeout(20):
            while True:
                (status,) = frontend._prober.statuses()
                if words in status.reason and status.state != "ready":
                    return
                await asyncio.sleep(0.01)

    @staticmethod
    async def ready(frontend: Frontend) -> None:
        async with asyncio.timeout(20):
            while not any(worker.usable for worker in frontend.ledger.snapshot().workers):
                await asyncio.sleep(0.01)

    @staticmethod
    async def chat(frontend: Frontend) -> int:
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{frontend.url}/v1/chat/completions", json=body) as answer,
        ):
            await answer.read()
            return answer.status

    @staticmethod
    def source(engine: Engine, host: str = "localhost", tls: EngineTls | None = None) -> tuple[WorkerSource, ...]:
        url = f"https://{host}:{engine.port}"
        return (WorkerSource(name="a", url=url, kind="openai", models=("m",), tls=tls),)

    async def test_a_private_authority_and_our_own_certificate(self, open_front_end, engine, pki: Pki) -> None:
        running = await engine(ListenTls(pki.listening(client_ca=pki.authority("us.pem", pki.other_ca))))
        certificate, key = pki.issue("us", "front@end", ca=pki.other_ca)
        tls = EngineTls(ca=pki.authority("ca.pem", pki.ca), certificate=certificate, key=key)
        frontend = await open_front_end(sources=self.source(running), trusts=Trusts(tls))
        await self.ready(frontend)
        assert await self.chat(frontend) == 200

    async def test_an_engine_may_have_a_trust_of_its_own_and_another_name(
        self, open_front_end, engine, pki: Pki
    ) -> None:
        running = await engine(ListenTls(pki.listening("engine.internal")))
        own = EngineTls(ca=pki.authority("ca.pem", pki.ca), server_name="engine.internal")
        common = EngineTls(ca=pki.authority("other.pem", pki.other_ca))
        frontend = await open_front_end(sources=self.source(running, "127.0.0.1", own), trusts=Trusts(common))
        await self.ready(frontend)
        assert await self.chat(frontend) == 200

    @pytest.mark.parametrize(
        ("what", "words"),
        [
            ("wrong authority", "its certificate is not trusted"),
            ("wrong name", "its certificate is for another name"),
            ("expired", "its certificate has expired"),
            ("no certificate of ours", "it may refuse the certificate that it is shown"),
        ],
    )
    async def test_what_is_wrong_is_named(self, open_front_end, engine, pki: Pki, what, words) -> None:
        listening: dict[str, Any] = {}
        hosts = ("localhost",)
        if what == "wrong name":
            hosts = ("elsewhere",)
        if what == "no certificate of ours":
            listening["client_ca"] = pki.authority("us.pem", pki.other_ca)
        tls = pki.listening(*hosts, **listening)
        if what == "expired":
            past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
            pki.issue("server", "localhost", not_before=past - datetime.timedelta(days=1), not_after=past)
        running = await engine(ListenTls(tls))
        trusted = pki.other_ca if what == "wrong authority" else pki.ca
        trusts = Trusts(EngineTls(ca=pki.authority("ca.pem", trusted)))
        frontend = await open_front_end(sources=self.source(running), trusts=trusts)
        await self.told(frontend, words)

    async def test_a_new_certificate_of_ours_is_shown_from_then_on(self, open_front_end, engine, pki: Pki) -> None:
        running = await engine(ListenTls(pki.listening(client_ca=pki.authority("us.pem", pki.other_ca))))
        certificate, key = pki.issue("us", "front@end", ca=pki.ca)
        tls = EngineTls(ca=pki.authority("ca.pem", pki.ca), certificate=certificate, key=key)
        frontend = await open_front_end(sources=self.source(running), trusts=Trusts(tls))
        await frontend.certificates.look()
        await self.told(frontend, "may refuse the certificate")
        pki.issue("us", "front@end", ca=pki.other_ca)
        await frontend.certificates.look()
        await self.ready(frontend)
        assert await self.chat(frontend) == 200

    def test_files_of_trusts_that_can_not_be_used_are_named(self, pki: Pki) -> None:
        with pytest.raises(ConfigError, match=r"control-plane\.engine_tls\.ca: can't use '/no': No such file"):
            Trusts(EngineTls(ca="/no"))
        with pytest.raises(ConfigError, match=r"tls\.ca: can't use '/no': No such file"):
            Trusts().use("https://a", EngineTls(ca="/no"))
        (pki.folder / "empty.pem").touch()
        with pytest.raises(ConfigError, match="engine_tls: can't use certificate"):
            Trusts(EngineTls(certificate=str(pki.folder / "empty.pem"), key="/no"))
