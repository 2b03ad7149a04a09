"""The bus over real sockets, and what it refuses."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pointsman.core.model.errors import EngineError
from pointsman.edge.cluster.replicas import message as wire
from pointsman.edge.cluster.replicas import zmq_transport
from pointsman.edge.cluster.replicas.message import Message, ReplicaMessageError, frames_of, message_of
from pointsman.edge.cluster.replicas.replica_bus import MOST_WAITING_BYTES, ReplicaBus
from pointsman.edge.cluster.replicas.sibling_folder import SiblingFolder
from pointsman.edge.cluster.replicas.timing import BusTiming
from pointsman.edge.cluster.replicas.zmq_transport import ZmqTransport
from support.free_ports import free_port
from support.replica_network import MemoryTransport, ReplicaNetwork
from support.scripted_server import closed, served
from support.virtual_time import run_virtually
from support.waiting import eventually

TIMING = BusTiming(batch_s=0.005, heartbeat_s=0.05, lost_after_s=1.0)


def now_ms() -> float:
    return time.monotonic() * 1000


def place(transport: ZmqTransport) -> tuple[str, ...]:
    return (f"tcp://127.0.0.1:{transport.port}",)


class Listener:
    """What one replica heard of a topic."""

    def __init__(self, bus: ReplicaBus, state: bytes | None = None, topic: str = "t") -> None:
        self.bus = bus
        self.heard: list[tuple[str, bytes]] = []
        self.lost: list[str] = []
        bus.subscribe(topic, lambda who, what: self.heard.append((who, what)), self.lost.append, lambda: state)


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a short path, as that of a socket may have no more than 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="pm", dir="/tmp") as made:
        yield Path(made)


@pytest.fixture
async def make() -> AsyncIterator[Callable[..., object]]:
    """`await make(listen, peers, secret=…, state=…)`: a started listener."""
    started: list[ReplicaBus] = []

    async def make_one(
        listen: str,
        peers: tuple[str, ...] = (),
        *,
        secret: str | None = None,
        state: bytes | None = None,
    ) -> tuple[Listener, ZmqTransport]:
        transport = ZmqTransport([listen], peers, secret=secret)
        bus = ReplicaBus(transport, now_ms, timing=TIMING, name=listen)
        listener = Listener(bus, state)
        await bus.start()
        started.append(bus)
        return listener, transport

    yield make_one
    for bus in started:
        await bus.close()


class TestOverSockets:
    @pytest.mark.parametrize("secret", [None, "a secret of the fleet"])
    async def test_all_hear_each_other_and_who_comes_late_hears_everything(self, make, secret) -> None:
        one, at_one = await make("tcp://127.0.0.1:*", secret=secret, state=b"whole of one")
        two, at_two = await make("tcp://127.0.0.1:*", place(at_one), secret=secret)
        at_one.follow(place(at_two))
        await eventually(lambda: one.bus.peers and two.bus.peers)
        whole = (one.bus.replica, b"whole of one")  # told again to who asks again, as the answer is late
        await eventually(lambda: whole in two.heard)
        one.bus.publish("t", b"1")
        one.bus.publish("t", b"2")
        one.bus.publish("of nobody", b"3")
        two.bus.publish("t", b"4")
        await eventually(lambda: one.heard == [(two.bus.replica, b"4")] and (one.bus.replica, b"2") in two.heard)
        assert two.heard[0] == whole
        assert [heard for heard in two.heard if heard != whole] == [(one.bus.replica, b"1"), (one.bus.replica, b"2")]
        three, at_three = await make("tcp://127.0.0.1:*", [*place(at_one), *place(at_two)], secret=secret)
        for transport in (at_one, at_two):
            transport.follow([*place(at_one), *place(at_two), *place(at_three)])
        await eventually(lambda: whole in three.heard)
        assert set(three.heard) == {whole}
        await eventually(lambda: all(len(x.bus.peers) == 2 for x in (one, two, three)))
        await two.bus.close()
        await eventually(lambda: one.lost == [two.bus.replica] and three.lost == [two.bus.replica])

    async def test_one_that_says_nothing_any_more_is_gone(self, make) -> None:
        one, at_one = await make("tcp://127.0.0.1:*")
        two, at_two = await make("tcp://127.0.0.1:*", place(at_one))
        at_one.follow(place(at_two))
        await eventually(lambda: one.bus.peers)
        two.bus._beat.cancel()
        await eventually(lambda: one.lost == [two.bus.replica])

    async def test_one_whose_host_vanished_without_a_word_is_found_again(self, make) -> None:
        """Lost power, or a network that was cut for long: whoever only hears would never learn that it has to connect
        anew."""
        one, at_one = await make("tcp://127.0.0.1:*")
        async with SilentProxy(at_one.port) as proxy:
            two, _ = await make("tcp://127.0.0.1:*", (f"tcp://127.0.0.1:{proxy.port}",))
            await eventually(lambda: two.bus.peers)
            proxy.swallow()
            await eventually(lambda: two.lost == [one.bus.replica])
            await eventually(lambda: two.bus.peers, 20.0)
            await two.bus.close()

    async def test_who_waits_for_the_place_of_an_old_one_is_heard_through_it(self, make, folder) -> None:
        shared = f"tcp://127.0.0.1:{free_port()}"
        old, _ = await make(shared, [f"ipc://{folder}/new"])
        far, at_far = await make("tcp://127.0.0.1:*", [shared], state=b"whole of far")
        transport = ZmqTransport([shared, f"ipc://{folder}/new"], place(at_far), patient=True)
        new = Listener(ReplicaBus(transport, now_ms, timing=TIMING, name="new"), b"whole of new")
        await new.bus.start()
        try:
            assert transport.waits_for == shared
            await eventually(lambda: (new.bus.replica, b"whole of new") in far.heard)
            await eventually(lambda: (far.bus.replica, b"whole of far") in new.heard)
            new.bus.publish("t", b"news")
            await eventually(lambda: (new.bus.replica, b"news") in far.heard)
            await old.bus.close()
            await eventually(lambda: transport.waits_for is None)
            new.bus.publish("t", b"more")
            await eventually(lambda: far.heard[-1][1] in (b"more", b"whole of new"))
            await eventually(lambda: old.bus.replica in far.lost)
        finally:
            await new.bus.close()

    @pytest.mark.parametrize(("ours", "theirs"), [("right", "wrong"), ("right", None), (None, "right")])
    async def test_another_secret_is_refused_with_one_line(self, make, caplog, ours, theirs) -> None:
        with caplog.at_level(logging.INFO, "pointsman.cluster"):
            one, at_one = await make("tcp://127.0.0.1:*", secret=ours)
            two, at_two = await make("tcp://127.0.0.1:*", place(at_one), secret=theirs)
            at_one.follow(place(at_two))
            await eventually(lambda: at_one.counts.total() and at_two.counts.total())
            assert not one.bus.peers
            assert not two.bus.peers
            assert "has a" in at_one.refused_lately or "has another" in at_one.refused_lately
        lines = [record.getMessage() for record in caplog.records if "is refused" in record.getMessage()]
        assert len(lines) == 2  # one each
        assert not any("right" in line or "wrong" in line for line in lines)

    async def test_who_says_nothing_is_not_taken_to_have_another_secret(self, make, monkeypatch) -> None:
        """A front end that stands still, somebody who looks whether a port is open."""
        monkeypatch.setattr(zmq_transport, "_HANDSHAKE_MS", 200)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            _, at_one = await make("tcp://127.0.0.1:*", (f"tcp://127.0.0.1:{port}",), secret="s")
            await eventually(lambda: at_one.refused_lately)
            assert at_one.refused_lately.startswith(f"who listens at tcp://127.0.0.1:{port} says nothing: it stands")
            for _ in range(3):
                socket.create_connection(("127.0.0.1", at_one.port)).close()
            two, _ = await make("tcp://127.0.0.1:*", place(at_one), secret="s")
            await eventually(lambda: two.bus.peers)
        assert at_one.counts.total() == 0
        assert "says nothing" in at_one.refused_lately

    async def test_a_place_that_is_taken(self, make) -> None:
        _, taken = await make("tcp://127.0.0.1:*")
        with pytest.raises(
            EngineError, match=r"can't listen at tcp://.*127\.0\.0\.1.*: Address already in use; .*replicas\.listen"
        ):
            await make(place(taken)[0])

    async def test_siblings_find_each_other_in_a_folder(self, make, folder, monkeypatch) -> None:
        found: dict[int, list[str]] = {}
        alive = {11, 12}
        monkeypatch.setattr("pointsman.edge.cluster.replicas.sibling_folder._lives", alive.__contains__)
        listeners = {}
        for pid in (11, 12):
            monkeypatch.setattr("os.getpid", lambda pid=pid: pid)
            listeners[pid] = await make(SiblingFolder(folder).own)
        (folder / "999.sock").write_bytes(b"")
        for pid in (11, 12):
            monkeypatch.setattr("os.getpid", lambda pid=pid: pid)
            found[pid] = SiblingFolder(folder).others()
            listeners[pid][1].follow(found[pid])
        assert found == {11: [f"ipc://{folder}/12.sock"], 12: [f"ipc://{folder}/11.sock"]}
        assert not (folder / "999.sock").exists()
        await eventually(lambda: all(listener.bus.peers for listener, _ in listeners.values()))


class TestMessages:
    def test_what_is_no_message(self) -> None:
        good = frames_of(Message(replica="r", name="", sequence=1, parts=[("t", b"x")]))
        assert message_of(good).parts == [("t", b"x")]
        for frames, why in (
            (good[:2], "2 parts"),
            ([good[0], b"pointsman-replicas-0", good[2]], "same version"),
            ([good[0], good[1], b"\xc1"], "can't be read"),
            ([good[0], good[1], b"\x93\x01\x02\x03"], "can't be read"),
        ):
            with pytest.raises(ReplicaMessageError, match=why):
                message_of(frames)

    def test_is_refused_once_in_the_log_and_counted(self, caplog) -> None:
        async def work() -> None:
            network = ReplicaNetwork(random.Random(1))
            bus, end = await started(network)
            for _ in range(3):
                end.take([wire.ALL, b"another version", b""])
            assert bus.counts["refused"] == 3
            assert "run the same version" in bus.refused_lately
            await asyncio.sleep(60.0)
            assert bus.refused_lately is None

        with caplog.at_level(logging.WARNING, "pointsman.cluster"):
            run_virtually(work())
        assert len([r for r in caplog.records if "refused" in r.getMessage()]) == 1

    def test_another_fleet_is_not_heard(self, caplog) -> None:
        """Two fleets with one secret, and a place that one of them gave to the other: workers may have the same names
        in both, and engines that are registered at one would be there in the other."""

        async def work() -> None:
            network = ReplicaNetwork(random.Random(1))
            ours = [Listener((await started(network))[0], b"ours") for _ in range(2)]
            loop = asyncio.get_running_loop()
            stranger = ReplicaBus(network.transport(), lambda: loop.time() * 1000, name="tcp://s:1", fleet="other")
            theirs = Listener(stranger, b"theirs")
            await stranger.start()
            stranger.publish("t", b"load")
            await asyncio.sleep(3.0)
            for one, other in (ours, ours[::-1]):
                assert [peer.replica for peer in one.bus.peers] == [other.bus.replica]
                assert {who for who, _ in one.heard} == {other.bus.replica}
                assert "tcp://s:1 is of the fleet 'other', this one of 'default'" in one.bus.refused_lately
                assert one.bus.counts["refused"] > 0
            assert (stranger.peers, theirs.heard) == ((), [])
            await stranger.close()
            assert ours[0].lost == []

        with caplog.at_level(logging.WARNING, "pointsman.cluster"):
            run_virtually(work())
        assert caplog.text.count("is of the fleet") == 3, "once each"

    def test_those_that_do_not_name_their_fleet_are_of_the_default_one(self) -> None:
        plain = msgspec.msgpack.decode(frames_of(Message(replica="r", name="", sequence=1, parts=[]))[2])
        assert message_of([wire.ALL, wire.VERSION, msgspec.msgpack.encode(plain[:-1])]).fleet == "default"

    def test_what_comes_on_a_slower_way_after_a_goodbye(self) -> None:
        """Whoever is named in `peers` and lies in the folder as well is heard twice, not always in order."""

        async def work() -> None:
            bus, end = await started(ReplicaNetwork(random.Random(1)))
            listener = Listener(bus)
            late = frames_of(Message(replica="r", name="", sequence=2, parts=[("t", b"load")]))
            for frames in (late, frames_of(Message(replica="r", name="", sequence=3, parts=[], bye=True)), late):
                end.take(frames)
            assert (listener.heard, listener.lost, bus.peers) == ([("r", b"load")], ["r"], ())

        run_virtually(work())

    def test_one_that_is_heard_and_does_not_hear_us(self, caplog) -> None:
        """We are not among its peers: whoever configured it has to be told."""

        async def work() -> None:
            network = ReplicaNetwork(random.Random(1))
            one, end = await started(network)
            await started(network)
            await asyncio.sleep(2.0)
            assert one.deaf is None
            for number in range(1, 60):
                end.take(frames_of(Message(replica="r", name="tcp://h:1", sequence=number, parts=[])))
                await asyncio.sleep(0.2)
            assert one.deaf is not None
            assert one.deaf.startswith("tcp://h:1 never answered")
            await asyncio.sleep(5.0)
            assert one.deaf is None

        with caplog.at_level(logging.WARNING, "pointsman.cluster"):
            run_virtually(work())
        assert caplog.text.count("never answered") == 1

    def test_a_subscriber_that_can_not_use_what_came_does_not_hurt_others(self, caplog) -> None:
        async def work() -> None:
            bus, end = await started(ReplicaNetwork(random.Random(1)))

            def refuse(who: str, what: bytes) -> None:
                raise ValueError("nonsense")

            bus.subscribe("bad", refuse, lambda who: None, lambda: None)
            good = Listener(bus)
            end.take(frames_of(Message(replica="r", name="", sequence=1, parts=[("bad", b"1"), ("t", b"2")])))
            assert good.heard == [("r", b"2")]
            assert bus.counts["refused"] == 1

        with caplog.at_level(logging.WARNING, "pointsman.cluster"):
            run_virtually(work())
        assert "what replica r told of 'bad' is refused: ValueError('nonsense')" in caplog.text


class TestSending:
    def test_what_happens_at_about_the_same_time_goes_in_one_message(self) -> None:
        async def work() -> None:
            network = ReplicaNetwork(random.Random(1))
            one, _ = await started(network, batch_s=0.01)
            two, _ = await started(network, batch_s=0.01)
            listener = Listener(two)
            await asyncio.sleep(1.0)
            before = one.counts["sent"]
            for number in range(20):
                one.publish("t", b"%d" % number)
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.05)
            assert [int(what) for _, what in listener.heard] == list(range(20))
            assert one.counts["sent"] - before <= 4

        run_virtually(work())

    def test_too_much_is_dropped_and_told_as_a_whole(self, caplog) -> None:
        async def work() -> None:
            network = ReplicaNetwork(random.Random(1))
            one, _ = await started(network)
            two, _ = await started(network)
            Listener(one, b"whole")
            listener = Listener(two)
            await asyncio.sleep(1.0)
            listener.heard.clear()
            for _ in range(3):
                one.publish("t", bytes(MOST_WAITING_BYTES // 2))
            assert one.counts["dropped"] == 1
            await asyncio.sleep(1.0)
            assert [what for _, what in listener.heard if len(what) < 10] == [b"whole"]
            assert two.peers[0].gaps == 1
            assert not two.peers[0].wants_whole

        run_virtually(work())
        assert "dropped, and told as a whole later" in caplog.text

    def test_nothing_is_told_before_start_and_after_close(self) -> None:
        async def work() -> None:
            network = ReplicaNetwork(random.Random(1))
            bus = ReplicaBus(network.transport(), now_ms)
            bus.publish("t", b"early")
            await bus.start()
            await bus.close()
            bus.publish("t", b"late")
            await bus.close()
            assert bus.counts["sent"] == 2  # that it is there, and that it goes

        run_virtually(work())

    def test_two_subscribers_of_one_topic(self) -> None:
        async def work() -> None:
            bus, _ = await started(ReplicaNetwork(random.Random(1)))
            Listener(bus)
            with pytest.raises(ValueError, match="has a subscriber"):
                Listener(bus)

        run_virtually(work())

    def test_one_that_stood_still_loses_nobody(self) -> None:
        """Its clock jumps, and what the others said meanwhile is still to be read."""

        async def work() -> None:
            network = ReplicaNetwork(random.Random(1), 0.0)
            jumped_ms = 0.0
            loop = asyncio.get_running_loop()
            bus = ReplicaBus(network.transport(), lambda: loop.time() * 1000 + jumped_ms)
            listener = Listener(bus)
            await bus.start()
            await started(network)
            await asyncio.sleep(1.0)
            jumped_ms = 60_000.0
            await asyncio.sleep(2.0)
            assert listener.lost == []
            assert len(bus.peers) == 1

        run_virtually(work())


class SilentProxy:
    """Carries connections to a port, until it swallows all that is sent over those that there are."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._swallowed: set[asyncio.StreamWriter] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._served = served(self._carry)
        self.port = 0

    async def __aenter__(self) -> SilentProxy:
        self.port = await self._served.__aenter__()
        return self

    async def __aexit__(self, *what: Any) -> None:
        await self._served.__aexit__(*what)

    def swallow(self) -> None:
        self._swallowed |= self._writers

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to = await asyncio.open_connection("127.0.0.1", self._to)
        self._writers |= {writer, to}
        try:
            await asyncio.gather(self._pump(reader, to), self._pump(there, writer), return_exceptions=True)
        finally:
            await closed(to)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            if writer not in self._swallowed:
                writer.write(data)


async def started(network: ReplicaNetwork, batch_s: float = 0.01) -> tuple[ReplicaBus, MemoryTransport]:
    end = network.transport()
    loop = asyncio.get_running_loop()
    bus = ReplicaBus(end, lambda: loop.time() * 1000, timing=BusTiming(batch_s=batch_s))
    await bus.start()
    return bus, end
