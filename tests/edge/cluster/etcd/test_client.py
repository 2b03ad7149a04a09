"""The client before a real etcd."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import msgspec
import pytest
import trustme
from aiohttp import web

from pointsman.edge.cluster.etcd.access import EtcdAccess
from pointsman.edge.cluster.etcd.client import Changes, EtcdClient
from pointsman.edge.cluster.etcd.errors import (
    CompactedError,
    EtcdRefusedError,
    EtcdUnreachableError,
    LeaseLostError,
)
from pointsman.edge.cluster.etcd.messages import created_at, deleting, holds, putting, reading, written_at
from pointsman.edge.configuration.etcd import Etcd, EtcdUrl
from support.etcd_server import EtcdServer
from support.free_ports import free_port


async def post(etcd: EtcdServer, path: str, body: dict[str, object]) -> None:
    async with aiohttp.ClientSession() as session, session.post(etcd.url + path, json=body) as answer:
        assert answer.status == 200, await answer.text()


MakePage = Callable[[int, str], Awaitable[str]]


@pytest.fixture
async def make_page() -> AsyncIterator[MakePage]:
    """`await make_page(status, text)`: URL of a server that says nothing else."""
    async with AsyncExitStack() as stack:

        async def make(status: int, text: str) -> str:
            async def answer(request: web.Request) -> web.Response:
                return web.Response(status=status, text=text, content_type="text/html")

            app = web.Application()
            app.router.add_route("*", "/{tail:.*}", answer)
            runner = web.AppRunner(app, access_log=None)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            return f"http://127.0.0.1:{runner.addresses[0][1]}"

        yield make


async def within(changes: AsyncIterator[Changes], limit_s: float = 8.0) -> Changes:
    async with asyncio.timeout(limit_s):
        return await anext(changes)


async def test_keys(client: EtcdClient) -> None:
    empty = await client.read(b"/w/", prefix=True)
    assert empty.entries == ()
    assert empty.cluster_id
    revision = await client.put(b"/w/a", b"\x00 one")
    assert revision == empty.revision + 1
    await client.put(b"/w/b", b"")
    await client.put(b"/x", b"elsewhere")
    found = await client.read(b"/w/", prefix=True)
    assert [(kv.key, kv.value) for kv in found.entries] == [(b"/w/a", b"\x00 one"), (b"/w/b", b"")]
    assert found.entries[0].mod_revision == revision
    assert (await client.read(b"/w/a")).entries == found.entries[:1]
    assert await client.delete(b"/w/a") == 1
    assert await client.delete(b"/w/a") == 0
    assert await client.delete(b"/w/", prefix=True) == 1
    assert (await client.read(b"/x")).entries[0].value == b"elsewhere"


async def test_leases(client: EtcdClient) -> None:
    lease = await client.grant(60)
    assert lease.ttl_s == 60
    await client.put(b"/l", b"v", lease.id)
    assert (await client.read(b"/l")).entries[0].lease == lease.id
    assert await client.keep_alive(lease.id) == 60
    await client.revoke(lease.id)
    assert (await client.read(b"/l")).entries == ()
    with pytest.raises(LeaseLostError):
        await client.keep_alive(lease.id)
    with pytest.raises(LeaseLostError):
        await client.put(b"/l", b"v", lease.id)
    await client.revoke(lease.id)


async def test_transactions(client: EtcdClient) -> None:
    lease = await client.grant(60)
    first = await client.transact([created_at(b"/t", 0)], [putting(b"/t", b"me", lease.id)], [reading(b"/t")])
    assert first.succeeded
    second = await client.transact([created_at(b"/t", 0)], [putting(b"/t", b"you")], [reading(b"/t")])
    assert not second.succeeded
    assert [(kv.value, kv.lease, kv.mod_revision) for kv in second.read] == [(b"me", lease.id, first.revision)]
    assert not (await client.transact([holds(b"/t", b"you")], [deleting(b"/t")])).succeeded
    assert (await client.transact([written_at(b"/t", first.revision)], [deleting(b"/t")])).succeeded
    assert (await client.read(b"/t")).entries == ()
    with pytest.raises(LeaseLostError):
        await client.transact([], [putting(b"/t", b"x", 12345)])


async def test_watch(client: EtcdClient) -> None:
    start = (await client.put(b"/w/a", b"1")) + 1
    changes = client.watch(b"/w/", start, prefix=True)
    assert (await within(changes)).events == ()
    await client.put(b"/elsewhere", b"")
    await client.put(b"/w/b", b"2" * 400_000)
    await client.delete(b"/w/a")
    seen = [event for _ in range(2) for event in (await within(changes)).events]
    assert [(event.type, event.kv.key, len(event.kv.value)) for event in seen] == [
        ("PUT", b"/w/b", 400_000),
        ("DELETE", b"/w/a", 0),
    ]
    await changes.aclose()  # type: ignore[attr-defined]
    late = client.watch(b"/w/b", start)
    assert (await within(late)).events == ()
    assert [event.kv.key for event in (await within(late)).events] == [b"/w/b"]
    await late.aclose()  # type: ignore[attr-defined]


async def test_watch_of_what_is_not_kept(etcd: EtcdServer, client: EtcdClient) -> None:
    for number in range(3):
        revision = await client.put(b"/w", b"%d" % number)
    await post(etcd, "/v3/kv/compaction", {"revision": str(revision)})
    with pytest.raises(CompactedError) as caught:
        async for _ in client.watch(b"/w", 1):
            pass
    assert caught.value.revision == revision


async def test_etcd_goes_away_and_comes_back(etcd: EtcdServer, client: EtcdClient) -> None:
    await client.put(b"/k", b"v")
    changes = client.watch(b"/k", 1)
    await within(changes)
    await within(changes)
    await etcd.stop()
    with pytest.raises(EtcdUnreachableError, match="watch"):
        await within(changes)
    with pytest.raises(EtcdUnreachableError, match="refused"):
        await client.read(b"/k")
    with pytest.raises(EtcdUnreachableError):
        await within(client.watch(b"/k", 1))
    await etcd.start()
    assert (await client.read(b"/k")).entries[0].value == b"v"


async def test_another_endpoint_answers(etcd: EtcdServer) -> None:
    closed = f"http://127.0.0.1:{free_port()}"
    async with EtcdClient(EtcdAccess((closed, etcd.url))) as client:
        assert (await client.transact([created_at(b"/t", 0)], [putting(b"/t", b"")])).succeeded
        await within(client.watch(b"/t", 1))
    async with EtcdClient(EtcdAccess((closed, closed.replace("127.0.0.1", "localhost")))) as client:
        with pytest.raises(EtcdUnreachableError, match=r"127\.0\.0\.1.*; .*localhost"):
            await client.read(b"/t")


async def test_frozen_endpoint_is_given_up(etcd: EtcdServer) -> None:
    async with EtcdClient(EtcdAccess((etcd.url,), timeout_s=0.3)) as client:
        async with asyncio.timeout(8.0):
            while True:
                with contextlib.suppress(EtcdUnreachableError):  # a busy machine may take longer as well
                    await client.read(b"/t")
                    break
        etcd.freeze()
        with pytest.raises(EtcdUnreachableError, match=r"within 0\.3 s"):
            await client.read(b"/t")
        etcd.thaw()


async def test_users(etcd: EtcdServer, client: EtcdClient) -> None:
    with_user = EtcdAccess((etcd.url,), user="root", password="secret")
    async with EtcdClient(with_user) as known:
        await known.put(b"/k", b"before users were switched on")
        await post(etcd, "/v3/auth/user/add", {"name": "root", "password": "secret"})
        await post(etcd, "/v3/auth/user/grant", {"user": "root", "role": "root"})
        await post(etcd, "/v3/auth/enable", {})
        assert (await known.read(b"/k")).entries
        assert (await known.grant(60)).ttl_s == 60
        await within(known.watch(b"/k", 1))
        known._gateway._token = "gone.1"  # as one that etcd forgot
        assert (await known.read(b"/k")).entries
    with pytest.raises(EtcdRefusedError, match=r"etcd\.user"):
        await client.read(b"/k")
    async with EtcdClient(EtcdAccess((etcd.url,), user="root", password="wrong")) as stranger:
        with pytest.raises(EtcdRefusedError, match="invalid user ID or password") as caught:
            await stranger.read(b"/k")
    assert "wrong" not in str(caught.value)


async def test_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    issued.cert_chain_pems[0].write_to_path(cert)
    issued.private_key_pem.write_to_path(key)
    etcd = EtcdServer(tmp_path, tls=(str(cert), str(key)))
    await etcd.start()
    try:
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        trusting = Etcd(endpoints=(EtcdUrl.parse(etcd.url),), ca=str(tmp_path / "ca.pem"))
        async with EtcdClient(EtcdAccess.of(trusting, {})) as client:
            await client.put(b"/k", b"v")
        async with EtcdClient(EtcdAccess((etcd.url,))) as client:
            with pytest.raises(EtcdUnreachableError, match=r"certificate is not trusted .*in etcd\.ca$"):
                await client.read(b"/k")
    finally:
        await etcd.stop()


async def test_certificates_on_both_sides(tmp_path: Path) -> None:
    """As the configuration names them. etcd calls itself for its gateway: its own must be good for clients, too."""
    authority = trustme.CA()
    names = {}
    for name in ("server", "client"):
        issued = authority.issue_cert("127.0.0.1")
        names[name] = (str(tmp_path / f"{name}.pem"), str(tmp_path / f"{name}.key"))
        issued.cert_chain_pems[0].write_to_path(names[name][0])
        issued.private_key_pem.write_to_path(names[name][1])
    ca = str(tmp_path / "ca.pem")
    authority.cert_pem.write_to_path(ca)
    etcd = EtcdServer(tmp_path, tls=names["server"], client_ca=ca)
    await etcd.start()
    try:
        section = Etcd(endpoints=(EtcdUrl.parse(etcd.url),), ca=ca)
        shown = msgspec.structs.replace(section, certificate=names["client"][0], key=names["client"][1])
        async with EtcdClient(EtcdAccess.of(shown, {})) as client:
            await client.put(b"/k", b"v")
            await within(client.watch(b"/k", 1))
        async with EtcdClient(EtcdAccess.of(section, {})) as client:
            with pytest.raises(EtcdUnreachableError):
                await client.read(b"/k")
        access = EtcdAccess.of(shown, {})
        assert access.trust is not None
        stranger = trustme.CA().issue_cert("127.0.0.1")
        async with EtcdClient(access) as client:
            for issued, right in ((stranger, False), (authority.issue_cert("127.0.0.1"), True)):
                issued.cert_chain_pems[0].write_to_path(names["client"][0])
                assert "the key belongs to another certificate" in access.trust.renew()[0]
                issued.private_key_pem.write_to_path(names["client"][1])
                assert access.trust.renew() == []
                if right:
                    assert [found.value for found in (await client.read(b"/k")).entries] == [b"v"]
                else:
                    with pytest.raises(EtcdUnreachableError):
                        await client.read(b"/k")
    finally:
        await etcd.stop()


@pytest.mark.parametrize("asked", ["read", "watch"])
async def test_something_before_etcd_that_has_no_etcd_now(etcd: EtcdServer, make_page: MakePage, asked: str) -> None:
    """A load balancer says 503 in words of its own: that is no refusal, and another endpoint may answer."""
    balancer = await make_page(503, "<html>no backend</html>")
    async with EtcdClient(EtcdAccess((balancer, etcd.url))) as client:
        if asked == "read":
            assert (await client.read(b"/a")).entries == ()
        else:
            await within(client.watch(b"/a", 1))
    async with EtcdClient(EtcdAccess((balancer,))) as client:
        with pytest.raises(EtcdUnreachableError, match="status 503"):
            await client.read(b"/a")


async def test_what_is_no_etcd(make_engine: object) -> None:
    engine = await make_engine({"/v3/kv/range": "<html>hello</html>", "/v3/watch": "<html>\n"})  # type: ignore[operator]
    async with EtcdClient(EtcdAccess((engine.url,))) as client:
        with pytest.raises(EtcdRefusedError, match=r"3\.4"):
            await client.read(b"/k")
        with pytest.raises(EtcdUnreachableError, match="can't be read"):
            await within(client.watch(b"/k", 1))
        with pytest.raises(EtcdRefusedError, match="client port"):
            await client.delete(b"/k")
