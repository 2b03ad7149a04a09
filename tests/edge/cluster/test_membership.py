"""Membership: whatever is offered in which order, exactly the union is watched."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.core.model.errors import ConfigError
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.cluster.membership import API, CONFIGURATION, ETCD, FILE, Membership
from support.log_lines import own_lines


class Watches:
    """A prober that only keeps the books, and is as strict as the real one."""

    def __init__(self) -> None:
        self.watched: dict[str, WorkerSource] = {}
        self.log: list[str] = []

    def add(self, source: WorkerSource) -> None:
        if source.name in self.watched or source.url in [other.url for other in self.watched.values()]:
            raise ConfigError(f"two engines have the name or URL of {source}")
        self.watched[source.name] = source
        self.log.append(f"+{source.name}")

    def change(self, source: WorkerSource) -> bool:
        if source.url != self.watched[source.name].url:
            return False
        self.watched[source.name] = source
        self.log.append(f"~{source.name}")
        return True

    async def remove(self, name: str, reason: str = "") -> None:
        await asyncio.sleep(0)
        del self.watched[name]
        self.log.append(f"-{name} {reason}")


class Drains:
    def __init__(self) -> None:
        self.now: dict[str, str] = {}

    def begin(self, engine: str, reason: str) -> None:
        self.now[engine] = reason

    def resume(self, engine: str) -> None:
        self.now.pop(engine)

    def of(self, engine: str) -> str | None:
        return self.now.get(engine)


def source(name: str, port: int = 0, **more: object) -> WorkerSource:
    return WorkerSource(name, f"http://{name if not port else 'h'}:{port or 8000}", **more)  # type: ignore[arg-type]


@pytest.fixture
def watches() -> Watches:
    return Watches()


@pytest.fixture
def drains() -> Drains:
    return Drains()


@pytest.fixture
def membership(watches: Watches, drains: Drains) -> Membership:
    return Membership(watches, drains)


async def test_union_of_all_places(membership: Membership, watches: Watches) -> None:
    membership.offer(FILE, [source("b"), source("c")])
    membership.offer(CONFIGURATION, [source("a")])
    assert not watches.watched
    await membership.start()
    assert sorted(watches.watched) == ["a", "b", "c"]
    membership.offer(FILE, [source("c")])
    membership.offer(ETCD, [source("d"), source("a")])
    await membership.settled()
    assert sorted(watches.watched) == ["a", "c", "d"]
    assert "-b is named nowhere any more" in watches.log
    assert {member.source.name: member.origin for member in membership.members()} == {
        "a": CONFIGURATION,
        "c": FILE,
        "d": ETCD,
    }
    assert membership.refused == ()
    await membership.close()


async def test_changes_are_made_without_being_asked_to(membership: Membership, watches: Watches) -> None:
    await membership.start()
    membership.offer(FILE, [source("a")])
    async with asyncio.timeout(5):
        while "a" not in watches.watched:
            await asyncio.sleep(0)
    await membership.close()


async def test_what_is_said_of_an_engine_changes(membership: Membership, watches: Watches) -> None:
    membership.offer(FILE, [source("a"), source("b", 1)])
    await membership.settled()
    membership.offer(FILE, [source("a", weight=2.0), source("b", 2)])
    await membership.settled()
    assert watches.log == ["+a", "+b", "~a", "-b is named otherwise by file now", "+b"]
    assert watches.watched == {"a": source("a", weight=2.0), "b": source("b", 2)}


async def test_urls_that_change_hands(membership: Membership, watches: Watches) -> None:
    """Both have to go before either can come."""
    membership.offer(FILE, [source("a", 1), source("b", 2)])
    await membership.settled()
    membership.offer(FILE, [source("a", 2), source("b", 1)])
    await membership.settled()
    assert watches.watched == {"a": source("a", 2), "b": source("b", 1)}


async def test_who_is_refused(membership: Membership, watches: Watches, caplog: pytest.LogCaptureFixture) -> None:
    membership.offer(ETCD, [source("a", 1), source("x", 9), source("y", 9)])
    membership.offer(CONFIGURATION, [source("a", 5)])
    membership.offer(API, [source("other", 5)])
    await membership.settled()
    assert watches.watched == {"a": source("a", 5), "x": source("x", 9)}
    assert [(r.origin, r.name, r.reason) for r in membership.refused] == [
        (API, "other", "a of configuration has this URL too"),
        (ETCD, "a", "configuration names http://h:5 so; choose another name"),
        (ETCD, "y", "x of etcd has this URL too"),
    ]
    said = own_lines(caplog)
    membership.offer(ETCD, [source("a", 1), source("x", 9), source("y", 9)])
    assert own_lines(caplog) == said
    assert membership.refused_total == 3
    membership.offer(CONFIGURATION, [])
    membership.offer(API, [])
    await membership.settled()
    assert watches.watched == {"a": source("a", 1), "x": source("x", 9)}


async def test_draining_as_the_record_says(membership: Membership, watches: Watches, drains: Drains) -> None:
    membership.offer(ETCD, [source("a")])
    await membership.settled()
    membership.offer(ETCD, [source("a", draining="it stops")])
    await membership.settled()
    assert drains.now == {"a": "it stops"}
    assert watches.log == ["+a"]
    membership.offer(ETCD, [source("a")])
    await membership.settled()
    assert drains.now == {}


async def test_who_is_named_twice_drains_if_one_says_so(membership: Membership, drains: Drains) -> None:
    membership.offer(CONFIGURATION, [source("a")])
    membership.offer(ETCD, [source("a", draining="it stops")])
    await membership.settled()
    assert drains.now == {"a": "it stops"}


async def test_removed_by_hand(membership: Membership, watches: Watches) -> None:
    membership.offer(FILE, [source("a"), source("b")])
    await membership.settled()
    assert await membership.remove("a")
    assert not await membership.remove("a")
    assert sorted(watches.watched) == ["b"]
    membership.offer(FILE, [source("a"), source("b")])
    await membership.settled()
    assert sorted(watches.watched) == ["a", "b"]


NAMES, PORTS = st.sampled_from("abcd"), st.integers(1, 3)
SOURCES = st.lists(
    st.builds(lambda n, p, w, d: source(n, p, weight=w, draining=d), NAMES, PORTS, st.sampled_from([1.0, 2.0]),
              st.sampled_from([None, None, "stops"])),
    max_size=4,
)  # fmt: skip
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([CONFIGURATION, API, FILE, ETCD]), SOURCES),
        st.just("settle"),
        st.tuples(st.just("remove"), NAMES),
    ),
    max_size=12,
)


@given(STEPS)
def test_any_order_of_offers_and_removals(steps: Sequence[object]) -> None:
    asyncio.run(_check(steps))


async def _check(steps: Sequence[object]) -> None:
    watches, drains = Watches(), Drains()
    membership = Membership(watches, drains)
    await membership.start()
    offered: dict[str, list[WorkerSource]] = {}
    for step in steps:
        if step == "settle":
            await asyncio.sleep(0)
        elif step[0] == "remove":  # type: ignore[index]
            for origin in offered:
                offered[origin] = [one for one in offered[origin] if one.name != step[1]]  # type: ignore[index]
            await membership.remove(step[1])  # type: ignore[index]
        else:
            origin, sources = step  # type: ignore[misc]
            offered[origin] = sources
            membership.offer(origin, sources)
    await membership.settled()
    await membership.close()
    wanted: dict[str, WorkerSource] = {}
    for origin in (CONFIGURATION, API, FILE, ETCD):
        for one in offered.get(origin, []):
            by_url = {other.url: other.name for other in wanted.values()}
            if one.name not in wanted and one.url not in by_url:
                wanted[one.name] = one
            elif one.name in wanted and wanted[one.name].url == one.url and one.draining:
                wanted[one.name] = replace(wanted[one.name], draining=wanted[one.name].draining or one.draining)
    assert watches.watched == {name: replace(one, draining=None) for name, one in wanted.items()}
    assert {name for name in drains.now if name in watches.watched} == {
        name for name, one in wanted.items() if one.draining
    }
    assert {member.source.name: member.source for member in membership.members()} == wanted
    everything = {(one.name, one.url) for sources in offered.values() for one in sources}
    assert {(r.name, r.url) for r in membership.refused} == everything - {(o.name, o.url) for o in wanted.values()}


async def test_one_that_can_not_be_watched_costs_only_itself(
    membership: Membership, watches: Watches, caplog: pytest.LogCaptureFixture
) -> None:
    await membership.start()
    watches.watched["ghost"] = source("ghost", 5)  # nobody knows why
    membership.offer(FILE, [source("a", 5), source("b", 6)])
    await membership.settled()
    assert sorted(watches.watched) == ["b", "ghost"]
    assert "a: can't be watched" in caplog.text
    assert [(one.name, one.origin) for one in membership.refused] == [("a", FILE)]
    assert membership.unwatched("a") is not None
    await membership.settled()
    assert caplog.text.count("can't be watched") == 1
    del watches.watched["ghost"]
    await membership.settled()
    assert sorted(watches.watched) == ["a", "b"]
    assert (membership.refused, membership.unwatched("a")) == ((), None)
    await membership.close()


async def test_at_the_start_somebody_is_told(membership: Membership, watches: Watches) -> None:
    watches.watched["ghost"] = source("ghost", 5)
    membership.offer(CONFIGURATION, [source("a", 5)])
    with pytest.raises(ConfigError):
        await membership.start()


async def test_what_nobody_expected_does_not_end_it(
    membership: Membership, watches: Watches, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await membership.start()
    monkeypatch.setattr(watches, "add", lambda source: 1 / 0)
    membership.offer(FILE, [source("a")])
    async with asyncio.timeout(5):
        while "nobody expected" not in caplog.text:
            await asyncio.sleep(0)
    monkeypatch.undo()
    membership.offer(FILE, [source("a"), source("b")])
    async with asyncio.timeout(5):
        while "b" not in watches.watched:
            await asyncio.sleep(0)
    assert sorted(watches.watched) == ["a", "b"]
    await membership.close()
