"""Survey: every pair of nodes probed, one probe at a time at each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from pointsman.edge.node.client import NodeClient, NodeError
from pointsman.edge.node.documents import NodeFacts, ProbeOrder
from pointsman.edge.transfer.probe.messages import LinkProbe, Sample

_BUSY_S = 1.0
"""Between two tries at a node that is probed by somebody else …"""
_FEWEST_TRIES = 15
"""… which ends within so many: a ticket that nobody uses holds it for 10 s, and another's probe as long as ours."""
_SLACK_S = 60.0
"""What a probe may take beyond its sizes' time: connections, answers that don't come."""


@dataclass(frozen=True, slots=True)
class Member:
    """A node that takes part."""

    name: str
    """Of its machine, as front ends know it."""
    url: str


@dataclass(frozen=True, slots=True)
class Pair:
    """What came of one pair; `probe` went from `one` to `other`."""

    one: str
    other: str
    probe: LinkProbe | None = None
    error: str = ""
    """Why there is none."""


@dataclass(frozen=True, slots=True)
class Direction:
    """What was measured of one direction."""

    source: str
    target: str
    probe: LinkProbe
    samples: tuple[Sample, ...]
    is_back: bool

    @property
    def largest(self) -> Sample:
        """The sample of most bytes, which tells the bandwidth."""
        return self.samples[-1]


@dataclass(frozen=True, slots=True)
class Survey:
    """All of them, in the order asked for."""

    members: tuple[Member, ...]
    unreachable: dict[str, str]
    """Names of nodes that did not answer, and why."""
    pairs: tuple[Pair, ...]

    def directions(self) -> Iterator[Direction]:
        """Of which something was measured."""
        for pair in self.pairs:
            if pair.probe is None:
                continue
            if pair.probe.forth:
                yield Direction(pair.one, pair.other, pair.probe, pair.probe.forth, False)
            if pair.probe.back:
                yield Direction(pair.other, pair.one, pair.probe, pair.probe.back, True)

    @property
    def failures(self) -> tuple[Pair, ...]:
        """Pairs of which nothing, or not all, was measured."""
        return tuple(pair for pair in self.pairs if pair.error or (pair.probe is not None and pair.probe.broke))


async def ask_all(client: NodeClient, urls: Sequence[str]) -> dict[str, NodeFacts | NodeError]:
    """What each node is, or why it does not say."""

    async def ask(url: str) -> NodeFacts | NodeError:
        try:
            return await client.facts(url)
        except NodeError as error:
            return error

    return dict(zip(urls, await asyncio.gather(*(ask(url) for url in urls)), strict=True))


async def survey(
    client: NodeClient,
    members: Sequence[Member],
    unreachable: dict[str, str],
    order: Callable[[str], ProbeOrder],
    *,
    at_once: int = 1,
    told: Callable[[Pair], None] = lambda pair: None,
) -> Survey:
    """Probe all pairs of members that can be reached; `order` makes the order for a target's URL.

    `at_once` pairs at a time, none of which share a node. `told` hears of each as it ends.
    """
    reachable = [member for member in members if member.name not in unreachable]
    waiting = list(combinations(reachable, 2))
    busy: set[str] = set()
    silent: set[str] = set()
    found: dict[tuple[str, str], Pair] = {}
    freed = asyncio.Event()

    async def probe(one: Member, other: Member) -> None:
        try:
            pair = await _probed(client, one, other, order(other.url), silent)
        finally:
            busy.difference_update((one.name, other.name))
            freed.set()
        found[one.name, other.name] = pair
        told(pair)

    async with asyncio.TaskGroup() as group:
        while waiting:
            free = next((p for p in waiting if not busy & {p[0].name, p[1].name}), None)
            if free is None or len(busy) >= 2 * at_once:
                freed.clear()
                await freed.wait()
                continue
            waiting.remove(free)
            busy.update((free[0].name, free[1].name))
            group.create_task(probe(*free))
    pairs = [found[one.name, other.name] for one, other in combinations(reachable, 2)]
    return Survey(tuple(members), unreachable, tuple(pairs))


async def _probed(client: NodeClient, one: Member, other: Member, order: ProbeOrder, silent: set[str]) -> Pair:
    """One pair. `silent`: machines that did not answer when something had failed, and may cost minutes again."""
    pair = Pair(
        one.name, other.name, error=await _still_silent(client, [m for m in (one, other) if m.name in silent], silent)
    )
    if pair.error:
        return pair
    pair = await _tried(client, one, other, order)
    if pair.error:
        await _still_silent(client, (one, other), silent)
    return pair


async def _still_silent(client: NodeClient, members: Sequence[Member], silent: set[str]) -> str:
    """Ask them again; why one does not answer, or nothing."""
    said = await ask_all(client, [member.url for member in members])
    errors = {member.name: error for member in members if isinstance(error := said[member.url], NodeError)}
    silent.difference_update(member.name for member in members)
    silent.update(errors)
    return next((str(error) for error in errors.values()), "")


async def _tried(client: NodeClient, one: Member, other: Member, order: ProbeOrder) -> Pair:
    limit_s = order.longest_s + _SLACK_S
    tries = max(_FEWEST_TRIES, round(order.longest_s))
    for attempt in range(1, tries + 1):
        try:
            answer = await client.probe(one.url, order, limit_s)
            return Pair(one.name, other.name, answer.probe)
        except NodeError as error:
            if error.status != 409 or attempt == tries:
                return Pair(one.name, other.name, error=str(error))
        await asyncio.sleep(_BUSY_S)
    raise AssertionError("unreachable")
