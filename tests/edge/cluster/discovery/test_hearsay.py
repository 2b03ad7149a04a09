"""A front end that starts while etcd is away."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence

import pytest

from pointsman.edge.cluster.discovery.discovery import DiscoveryState
from pointsman.edge.cluster.discovery.etcd_source import EtcdDiscovery
from pointsman.edge.cluster.discovery.hearsay import Hearsay
from pointsman.edge.cluster.etcd.client import Changes, Listing
from pointsman.edge.cluster.etcd.errors import EtcdUnreachableError
from pointsman.edge.cluster.etcd.messages import KeyValue
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.cluster.replicas.bus import Gone, Heard, Tell
from support.virtual_time import in_virtual_time
from support.waiting import eventually

PREFIX = "/pointsman/f/workers/"


class Bus:
    replica = "me"

    def publish(self, topic: str, payload: bytes) -> None:
        raise AssertionError("it only answers those who are new")

    def subscribe(self, topic: str, heard: Heard, gone: Gone, whole: Tell) -> None:
        assert topic == "etcd"
        self.heard, self.whole = heard, whole


class Etcd:
    """Away until it is given names."""

    def __init__(self, *names: str) -> None:
        self.names: tuple[str, ...] | None = names or None

    async def read(self, key: bytes, *, prefix: bool = False) -> Listing:
        await asyncio.sleep(0.005)
        if self.names is None:
            raise EtcdUnreachableError("connection refused")
        entries = (KeyValue(f"{PREFIX}{n}".encode(), f'{{"url": "http://{n}:1"}}'.encode(), 1, 1) for n in self.names)
        return Listing(5, 1, tuple(entries))

    async def watch(self, key: bytes, from_revision: int, *, prefix: bool = False) -> AsyncIterator[Changes]:
        yield Changes(from_revision - 1, ())
        await asyncio.Event().wait()


class FrontEnd:
    def __init__(self, etcd: Etcd, prefix: str = PREFIX) -> None:
        self.bus = Bus()
        self.names: list[str] = []
        now_ms = asyncio.get_running_loop().time
        self.discovery = EtcdDiscovery(
            etcd,
            prefix,
            lambda record: WorkerSource(record.engine_name, str(record.url)),
            self._offer,
            lambda: 1000 * now_ms(),
            random.Random(1),
            grace_s=0.1,
        )
        Hearsay(self.bus, prefix, self.discovery)
        self.task = asyncio.create_task(self.discovery.run())

    def _offer(self, sources: Sequence[WorkerSource]) -> None:
        self.names = [source.name for source in sources]

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def told_by(*names: str) -> bytes:
    old = FrontEnd(Etcd(*names))
    await eventually(lambda: len(old.names) == len(names))
    told = old.bus.whole()
    await old.close()
    assert told is not None
    return told


@in_virtual_time
async def test_engines_are_known_from_others_until_etcd_is_back(caplog: pytest.LogCaptureFixture) -> None:
    told = await told_by("a", "b")
    etcd = Etcd()
    new = FrontEnd(etcd)
    assert new.bus.whole() is None
    new.bus.heard("old", told)
    assert new.names == ["a:1", "b:1"]
    new.bus.heard("another", told)
    assert caplog.text.count("2 engines as front end old knows them") == 1
    assert "etcd does not know" not in caplog.text
    await eventually(lambda: new.discovery.status.state is DiscoveryState.LOST)
    await asyncio.sleep(0.2)
    assert new.names == ["a:1", "b:1"]  # for as long as etcd is away
    assert (new.discovery.status.engines, new.discovery.status.kept) == (2, 2)
    assert new.bus.whole() == told  # the next one hears it from here
    etcd.names = ("a", "c")
    await eventually(lambda: "c:1" in new.names)
    assert new.names == ["a:1", "c:1", "b:1"]
    await eventually(lambda: new.names == ["a:1", "c:1"])  # b had time to register again
    await new.close()


@in_virtual_time
async def test_who_read_etcd_knows_better() -> None:
    told = await told_by("a", "b")
    new = FrontEnd(Etcd("c"))
    await eventually(lambda: new.names == ["c:1"])
    new.bus.heard("old", told)
    assert new.names == ["c:1"]
    await new.close()


@pytest.mark.parametrize("read_at_once", [False, True])
@in_virtual_time
async def test_heard_before_the_first_reading(read_at_once: bool) -> None:
    told = await told_by("a")
    new = FrontEnd(Etcd("c") if read_at_once else Etcd())
    new.bus.heard("old", told)
    assert new.names == ["a:1"]
    if read_at_once:
        await eventually(lambda: new.names == ["c:1"])
    await new.close()


@in_virtual_time
async def test_another_fleet_and_nonsense(caplog: pytest.LogCaptureFixture) -> None:
    told = await told_by("a")
    new = FrontEnd(Etcd(), "/pointsman/other/workers/")
    new.bus.heard("old", told)
    new.bus.heard("old", b"\x00")
    assert new.names == []
    assert "is it of another version" in caplog.text
    await new.close()
