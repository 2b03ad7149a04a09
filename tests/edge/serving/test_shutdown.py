"""The end of a front end, with a scripted server."""

from __future__ import annotations

import asyncio

from pointsman.edge.serving.shutdown import Phase, Shutdown
from support.waiting import eventually


class Server:
    def __init__(self) -> None:
        self.busy = 0
        self.connections = self.unread = 0
        self.said: list[str] = []

    def stop_listening(self) -> None:
        self.said.append("deaf")

    def begin_closing(self, linger_s: float = 0.0) -> None:
        self.said.append("closing")


class World:
    def __init__(self) -> None:
        self.server = Server()
        self.cuts: list[str] = []
        self.shutdown = Shutdown(self.server, self.cut)

    def cut(self, reason: str) -> int:
        self.cuts.append(reason)
        count, self.server.busy = self.server.busy, 0
        return count


async def test_idle_it_stops_at_once_and_listens_to_the_end() -> None:
    world = World()
    assert world.shutdown.ready
    await asyncio.wait_for(world.shutdown.stop(600), 30)
    assert (world.server.said, world.cuts) == (["closing"], [])
    assert not world.shutdown.accepting


async def test_what_runs_gets_its_grace() -> None:
    world = World()
    world.server.busy = 1
    stopping = asyncio.create_task(world.shutdown.stop(600))
    await eventually(lambda: world.shutdown.phase is Phase.REFUSING)
    assert (world.shutdown.ready, world.shutdown.accepting) == (False, False)
    world.server.busy = 0
    await asyncio.wait_for(stopping, 30)
    assert world.cuts == []


async def test_within_the_lag_it_is_not_ready_but_answers() -> None:
    world = World()
    stopping = asyncio.create_task(world.shutdown.stop(600, lag_s=600))
    await eventually(lambda: world.shutdown.phase is Phase.LEAVING)
    assert (world.shutdown.ready, world.shutdown.accepting) == (False, True)
    world.shutdown.hurry()
    await asyncio.wait_for(stopping, 30)


async def test_after_the_grace_the_rest_is_cut() -> None:
    world = World()
    world.server.busy = 2
    await asyncio.wait_for(world.shutdown.stop(0.01), 30)
    assert world.cuts == ["the front end is stopping"]
    assert world.shutdown.phase is Phase.CUTTING


async def test_in_a_hurry_it_cuts_at_once() -> None:
    world = World()
    world.server.busy = 1
    stopping = asyncio.create_task(world.shutdown.stop(600))
    await eventually(lambda: world.shutdown.phase is Phase.REFUSING)
    world.shutdown.hurry()
    await asyncio.wait_for(stopping, 30)
    assert len(world.cuts) == 1


async def test_replaced_it_answers_until_its_last_connection_is_gone() -> None:
    world = World()
    world.server.connections = 1
    retiring = asyncio.create_task(world.shutdown.retire(600))
    await eventually(lambda: world.server.said == ["deaf", "closing"])
    assert (world.shutdown.ready, world.shutdown.accepting) == (False, True)
    world.server.connections = 0
    await asyncio.wait_for(retiring, 30)
    assert world.cuts == []
