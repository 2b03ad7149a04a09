"""Engines over the admin API at three front ends, joined by a bus that loses what a test wants to be lost."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field

import pytest

from pointsman.core.model.errors import ConfigError
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.cluster.membership import CONFIGURATION, Membership
from pointsman.edge.cluster.replicas.bus import Gone, Heard, NoBus, Tell
from pointsman.edge.serving.drains import UnknownEngineError
from pointsman.edge.serving.workers.registrar import Registrar
from pointsman.edge.serving.workers.roles import TakenError
from pointsman.edge.serving.workers.settings import RecordReader


class Network:
    """All buses of a test."""

    def __init__(self) -> None:
        self.buses: list[LocalBus] = []
        self.deaf: set[str] = set()

    def bus(self, name: str) -> LocalBus:
        bus = LocalBus(name, self)
        self.buses.append(bus)
        return bus

    def introduce(self, name: str) -> None:
        """As if it had just come: all tell it everything, and it tells them."""
        for bus in self.buses:
            for other in self.buses:
                if bus is not other and name in (bus.replica, other.replica):
                    bus.deliver(other.replica, other.whole())


class LocalBus:
    def __init__(self, replica: str, network: Network) -> None:
        self.replica = replica
        self._network = network
        self.heard: Heard | None = None
        self.gone: Gone | None = None
        self._whole: Tell | None = None

    def subscribe(self, topic: str, heard: Heard, gone: Gone, whole: Tell) -> None:
        assert topic == "workers"
        self.heard, self.gone, self._whole = heard, gone, whole

    def whole(self) -> bytes:
        assert self._whole is not None
        told = self._whole()
        assert told is not None
        return told

    def publish(self, topic: str, payload: bytes) -> None:
        for other in self._network.buses:
            if other is not self:
                asyncio.get_running_loop().call_soon(other.deliver, self.replica, payload)

    def deliver(self, replica: str, payload: bytes) -> None:
        assert self.heard is not None
        if self.replica not in self._network.deaf and replica not in self._network.deaf:
            self.heard(replica, payload)


class Watches:
    def __init__(self) -> None:
        self.watched: dict[str, WorkerSource] = {}

    def add(self, source: WorkerSource) -> None:
        self.watched[source.name] = source

    def change(self, source: WorkerSource) -> bool:
        self.watched[source.name] = source
        return True

    async def remove(self, name: str, reason: str = "") -> None:
        del self.watched[name]


class Drains:
    """Knows what is watched; engines in `busy` have requests."""

    def __init__(self, watches: Watches) -> None:
        self._watches = watches
        self.busy: set[str] = set()
        self.now: dict[str, tuple[str, float | None]] = {}
        self._then: dict[str, object] = {}

    def begin(self, engine: str, reason: str, grace_s: float | None = None, *, then: object = None) -> None:
        if engine not in self._watches.watched:
            raise UnknownEngineError(f"no engine is called {engine!r}")
        self.now[engine] = (reason, grace_s)
        if then is not None and engine not in self.busy:
            then()  # type: ignore[operator]
        elif then is not None:
            self._then[engine] = then

    def resume(self, engine: str) -> None:
        if engine not in self._watches.watched:
            raise UnknownEngineError(f"no engine is called {engine!r}")
        self.now.pop(engine, None)
        self._then.pop(engine, None)

    def of(self, engine: str) -> tuple[str, float | None] | None:
        return self.now.get(engine)

    def finish(self, engine: str) -> None:
        self.busy.discard(engine)
        self._then.pop(engine)()  # type: ignore[operator]


@dataclass
class FrontEnd:
    registrar: Registrar
    membership: Membership
    watches: Watches
    drains: Drains

    async def names(self) -> list[str]:
        await self.membership.settled()
        return sorted(self.watches.watched)


@dataclass
class Times:
    now_ms: float = 0.0


@dataclass
class World:
    network: Network = field(default_factory=Network)
    times: Times = field(default_factory=Times)
    alive: set[str] = field(default_factory=set)
    """Engines that answer."""

    def front_end(self, name: str, bus: object = None, read: RecordReader | None = None) -> FrontEnd:
        watches = Watches()
        drains = Drains(watches)
        membership = Membership(watches, drains)
        used = bus or self.network.bus(name)
        registrar = Registrar(
            membership,
            drains,  # type: ignore[arg-type]
            used,  # type: ignore[arg-type]
            read or RecordReader(environ={"KEY": "secret", "OTHER": "x"}, key_variables=frozenset({"KEY"})),
            lambda name: name in self.alive,
            lambda: self.times.now_ms,
            lambda: 1e12 + self.times.now_ms,
        )
        return FrontEnd(registrar, membership, watches, drains)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def alone(world: World) -> FrontEnd:
    return world.front_end("a", NoBus())


def body(name: str = "x", port: int = 1, **more: object) -> bytes:
    return json.dumps({"url": f"http://h:{port}", "name": name, **more}).encode()


async def test_registered_again_and_changed(alone: FrontEnd) -> None:
    first = await alone.registrar.post(body())
    assert (first.is_new, first.origin, first.reach.reached) == (True, "api", 1)
    again = await alone.registrar.post(body(weight=3))
    assert not again.is_new
    await alone.membership.settled()
    assert alone.watches.watched["x"].weight == 3


@pytest.mark.parametrize(
    ("posted", "message"),
    [
        (b"{", "body: this is no JSON"),
        (b"[]", "body: the record: expected keys and values"),
        (b'{"url": null}', "body: it has no address yet"),
        (body(weigth=1), "body: weigth: unknown key; did you mean weight?"),
        (body(ttl="5"), "body: ttl: expected a duration"),
        (body(topology={"rack": "r"}), "topology.rack: rack is none of control-plane.topology_levels"),
        (body(profile="nonesuch"), "profile: "),
        (body(api_key_env="OTHER"), "api_key_env: OTHER may not be named here"),
        (body(name="a/b"), "body: name: expected text"),
    ],
)
async def test_bad_bodies(alone: FrontEnd, posted: bytes, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        await alone.registrar.post(posted)
    assert message in str(caught.value)
    assert await alone.names() == []


async def test_keys(alone: FrontEnd) -> None:
    await alone.registrar.post(body(api_key_env="KEY"))
    await alone.membership.settled()
    assert alone.watches.watched["x"].api_key == "secret"


async def test_taken_names_and_urls(alone: FrontEnd) -> None:
    alone.membership.offer(CONFIGURATION, [WorkerSource("c", "http://c:1")])
    await alone.registrar.post(body())
    with pytest.raises(TakenError, match=r"x is http://h:1 already, named by the api"):
        await alone.registrar.post(body(port=2))
    with pytest.raises(TakenError, match=r"http://h:1 is x already"):
        await alone.registrar.post(body("y"))
    with pytest.raises(TakenError, match=r"c is http://c:1 already, named by the configuration"):
        await alone.registrar.post(body("c"))
    named = await alone.registrar.post(b'{"name": "c", "url": "http://C:1/"}')
    assert (named.origin, named.is_new) == ("configuration", False)
    await alone.registrar.delete("c", now=True)  # what was registered, not what is configured
    assert await alone.names() == ["c", "x"]
    with pytest.raises(TakenError, match="remove it there, or drain it"):
        await alone.registrar.delete("c", now=True)
    with pytest.raises(UnknownEngineError, match="there are c, x"):
        await alone.registrar.delete("z", now=True)


async def test_an_engine_that_is_configured_and_joins_too(alone: FrontEnd) -> None:
    """It drains when it says so, and works again when its next process comes."""
    alone.membership.offer(CONFIGURATION, [WorkerSource("x", "http://h:1", weight=2.0)])
    await alone.registrar.post(body(ttl="15s"))
    await alone.registrar.post(body(ttl="15s", draining="SIGTERM"))
    await alone.names()
    assert alone.drains.now == {"x": ("SIGTERM", None)}
    await alone.registrar.post(body(ttl="15s"))
    await alone.names()
    assert alone.drains.now == {}
    assert alone.watches.watched["x"].weight == 2.0


async def test_deleted_once_nothing_runs_there(alone: FrontEnd) -> None:
    await alone.registrar.post(body())
    await alone.names()
    alone.drains.busy.add("x")
    await alone.registrar.delete("x", now=False)
    assert await alone.names() == ["x"]
    assert alone.registrar.status.kept == 1
    with pytest.raises(TakenError, match="post it again"):
        await alone.registrar.resume("x")
    alone.drains.finish("x")
    assert await alone.names() == []


async def test_registered_again_while_it_is_deleted(alone: FrontEnd, caplog: pytest.LogCaptureFixture) -> None:
    await alone.registrar.post(body())
    await alone.names()
    alone.drains.busy.add("x")
    await alone.registrar.delete("x", now=False)
    await alone.registrar.post(body())
    assert alone.drains.now == {}
    assert await alone.names() == ["x"]
    assert "x: was deleted and is registered again" in caplog.text


async def test_deleted_at_once(alone: FrontEnd) -> None:
    await alone.registrar.post(body())
    await alone.names()
    alone.drains.busy.add("x")
    await alone.registrar.delete("x", now=True)
    assert await alone.names() == []
    assert alone.drains.now == {}


async def test_who_does_not_say_it_again_leaves(world: World, alone: FrontEnd) -> None:
    await alone.registrar.post(body(ttl="15s"))
    world.times.now_ms = 14_000.0
    alone.registrar.look()
    assert await alone.names() == ["x"]
    await alone.registrar.post(body(ttl="15s"))
    world.times.now_ms = 28_000.0
    alone.registrar.look()
    assert await alone.names() == ["x"]
    world.times.now_ms = 29_000.0
    alone.registrar.look()
    assert await alone.names() == []


async def test_who_answers_stays(world: World, alone: FrontEnd, caplog: pytest.LogCaptureFixture) -> None:
    """The front end that it tells may be what is gone."""
    world.alive = {"x"}
    await alone.registrar.post(body(ttl="15s"))
    for now_ms in (15_000.0, 30_000.0, 45_000.0):
        world.times.now_ms = now_ms
        alone.registrar.look()
    assert await alone.names() == ["x"]
    assert caplog.text.count("stays while it answers") == 1
    world.alive = set()
    world.times.now_ms = 59_999.0
    alone.registrar.look()
    assert await alone.names() == ["x"]
    world.times.now_ms = 60_000.0
    alone.registrar.look()
    assert await alone.names() == []


async def test_who_said_that_it_goes_does_not_stay(world: World, alone: FrontEnd) -> None:
    world.alive = {"x"}
    await alone.registrar.post(body(ttl="15s", draining="SIGTERM"))
    world.times.now_ms = 15_000.0
    alone.registrar.look()
    assert await alone.names() == []


async def three(world: World) -> list[FrontEnd]:
    ends = [world.front_end(name) for name in "abc"]
    for name in "abc":
        world.network.introduce(name)
    return ends


async def test_all_front_ends_hear(world: World) -> None:
    a, b, c = await three(world)
    posted = await a.registrar.post(body(weight=2))
    assert posted.reach.reached == 3
    assert [await end.names() for end in (a, b, c)] == [["x"]] * 3
    assert c.watches.watched["x"].weight == 2
    assert (await b.registrar.drain("x", "upgrade", 5.0)).reached == 3
    assert [end.drains.now for end in (a, b, c)] == [{"x": ("upgrade", 5.0)}] * 3
    assert (await c.registrar.resume("x")).reached == 3
    assert [end.drains.now for end in (a, b, c)] == [{}] * 3
    for end in (a, b):
        end.drains.busy.add("x")
    assert (await c.registrar.delete("x", now=False)).reached == 3
    assert [await end.names() for end in (a, b, c)] == [["x"], ["x"], []]
    a.drains.finish("x")
    b.drains.finish("x")
    assert [await end.names() for end in (a, b, c)] == [[], [], []]


async def test_who_can_not_be_reached_is_named_and_hears_later(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pointsman.edge.serving.workers.registrar.REACH_S", 0.02)
    a, b, c = await three(world)
    world.network.deaf = {"b"}
    posted = await a.registrar.post(body())
    assert (posted.reach.reached, posted.reach.missing) == (2, ("b",))
    assert "1 of 2 other front ends did not answer" in caplog.text
    assert [await end.names() for end in (a, b, c)] == [["x"], [], ["x"]]
    world.network.deaf = set()
    world.network.introduce("b")
    assert await b.names() == ["x"]
    c.registrar._gone("b")
    c.registrar._gone("a")
    assert (await c.registrar.post(body("y", 2))).reach.reached == 1


async def test_a_new_front_end_hears_everything(world: World) -> None:
    a, *_ = await three(world)
    await a.registrar.post(body())
    await a.registrar.post(body("y", 2))
    await a.registrar.drain("y", "upgrade", None)
    await a.registrar.delete("x", now=True)
    d = world.front_end("d")
    world.network.introduce("d")
    assert await d.names() == ["y"]
    d.registrar.look()
    assert d.drains.now == {"y": ("upgrade", None)}


async def test_a_drain_ends_with_its_engine(world: World) -> None:
    """One that comes back under the name is another one, also for front ends that start later."""
    a, b, _ = await three(world)
    await a.registrar.post(body())
    await a.registrar.drain("x", "upgrade", None)
    for end in (a, b):
        end.registrar.look()
    await b.registrar.delete("x", now=True)
    for end in (a, b):
        await end.names()
        end.drains.now.clear()  # as it is once an engine is gone
        end.registrar.look()
    await a.registrar.post(body())
    d = world.front_end("d")
    world.network.introduce("d")
    for end in (a, b, d):
        assert await end.names() == ["x"]
        end.registrar.look()
    assert [end.drains.now for end in (a, b, d)] == [{}, {}, {}]
    assert (await d.registrar.drain("x", "again", None)).reached == 4
    assert [end.drains.now for end in (a, b, d)] == [{"x": ("again", None)}] * 3


async def test_deleted_by_the_engine_itself_and_not_by_one_that_has_its_name(alone: FrontEnd) -> None:
    await alone.registrar.post(body())
    with pytest.raises(TakenError, match="x is http://h:1, not http://h:2"):
        await alone.registrar.delete("x", now=True, url="http://h:2")
    assert await alone.names() == ["x"]
    await alone.registrar.delete("x", now=True, url="http://h:1/")
    assert await alone.names() == []


async def test_started_again_under_another_name(world: World) -> None:
    """It answers where the former did, which therefore would stay for ever."""
    a, b, _ = await three(world)
    world.alive = {"x", "y"}
    await a.registrar.post(body(ttl="15s"))
    with pytest.raises(TakenError, match="http://h:1 is x already"):
        await a.registrar.post(body("y"))
    world.times.now_ms = 15_000.0
    for end in (a, b):
        end.registrar.look()
    await a.registrar.post(body("y", ttl="15s"))
    assert [await end.names() for end in (a, b)] == [["y"], ["y"]]


async def test_said_again_nothing_is_offered_anew(alone: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of engines say it three times in their time."""
    await alone.registrar.post(body(ttl="15s"))
    offers: list[str] = []
    monkeypatch.setattr(alone.membership, "offer", lambda origin, sources: offers.append(origin))
    await alone.registrar.post(body(ttl="15s"))
    assert offers == []
    await alone.registrar.post(body(ttl="15s", weight=2))
    assert offers == ["api"]


async def test_names_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not written down would not reach the others, so it is refused."""
    monkeypatch.setattr("pointsman.edge.cluster.discovery.registrations.MOST", 1)
    a, b, _ = await three(world)
    await a.registrar.post(body())
    with pytest.raises(TakenError, match="too many names"):
        await a.registrar.post(body("y", 2))
    assert [await end.names() for end in (a, b)] == [["x"], ["x"]]


async def test_what_another_one_can_not_use(world: World, caplog: pytest.LogCaptureFixture) -> None:
    a = world.front_end("a")
    b = world.front_end("b", read=RecordReader())
    world.network.introduce("a")
    assert (await a.registrar.post(body(api_key_env="KEY"))).reach.reached == 2
    assert await b.names() == []
    assert "can't be used here" in caplog.text
    assert b.registrar.status.ignored_total == (("malformed", 1),)
    await a.registrar.delete("x", now=False)
    assert await a.names() == []


async def test_what_can_not_be_read_is_said(world: World, caplog: pytest.LogCaptureFixture) -> None:
    a = world.front_end("a")
    a.registrar._heard("b", b"\x00")
    assert "is it of another version" in caplog.text
