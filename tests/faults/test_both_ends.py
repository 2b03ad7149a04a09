"""Front ends that die or do not hear each other, clients that drip or vanish, streams that can not go on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pointsman.core.model.replica import NO_SHARE
from pointsman.edge.configuration.tree import ConfigTree
from pointsman.edge.serving.failover import FailoverSettings, RouteFailoverSettings
from pointsman.edge.serving.settings import FrontendSettings
from support.virtual.fleet import VirtualFleet, fleet_of
from support.virtual.loop import VirtualLoop, run_virtual
from support.virtual.scene import wrong

FREED_WITHIN_S = 3.0


def others_at(fleet: VirtualFleet, number: int) -> list[Any]:
    """What one front end thinks that others have at the workers."""
    return [worker.others for worker in fleet.frontends[number].ledger.snapshot().workers]


async def die(fleet: VirtualFleet, number: int) -> None:
    """kill -9 of a front end: nobody hears a goodbye."""
    fleet.line.transports[number].silent = True
    fleet.network.kill(f"10.0.1.{number + 1}")
    await asyncio.sleep(0)


def test_what_a_front_end_held_is_free_soon_after_its_death() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with fleet_of(loop, 3, 3) as fleet:
            asked = [fleet.chat() for _ in range(9)]
            await fleet.until(lambda: all(answer.tokens > 5 for answer, _, _ in asked))
            assert any(share != NO_SHARE for share in others_at(fleet, 1))
            killed_s = loop.time()
            await die(fleet, 0)
            await fleet.until(lambda: sum(engine.running for engine in fleet.engines) == 6, 1.0)
            survivors = [(a, t, b) for a, t, b in asked if not a.over.is_set()]
            assert len(survivors) == 6, "streams of front ends that live were cut"
            await fleet.until(lambda: len(fleet.frontends[1].replication.statuses()) == 1, FREED_WITHIN_S)
            assert loop.time() - killed_s <= FREED_WITHIN_S
            gone = fleet.frontends.pop(0)
            more = [fleet.chat() for _ in range(4)]
            for _, task, _ in (*survivors, *more):
                await task
            truth = await fleet.truth([body for _, _, body in (*survivors, *more)])
            for (answer, _, _), right in zip((*survivors, *more), truth, strict=True):
                assert wrong(answer, right) == ""
            await fleet.until(lambda: not fleet.at_rest(), 5.0)
            await gone.close()

    run_virtual(main)


def test_front_ends_that_do_not_hear_each_other_serve_on_and_agree_again() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with fleet_of(loop, 3, 3) as fleet:
            fleet.line.cut.update({frozenset((0, 1)), frozenset((0, 2))})
            asked = []
            for _ in range(10):
                asked.append(fleet.chat())
                await asyncio.sleep(0.5)
            assert all(share == NO_SHARE for share in others_at(fleet, 0)), "it hears nobody, so it counts nobody"
            fleet.engines[0].kill()  # nobody tells the one that is alone
            asked += [fleet.chat() for _ in range(6)]
            await fleet.until(lambda: all(answer.tokens > 3 for answer, _, _ in asked[-6:]))
            fleet.line.cut.clear()
            await fleet.until(lambda: all(len(f.replication.statuses()) == 2 for f in fleet.frontends), 5.0)
            await asyncio.sleep(1.0)
            for number, frontend in enumerate(fleet.frontends):
                own = [worker.running for worker in frontend.ledger.snapshot().workers]
                for other in range(3):
                    if other != number:
                        told = fleet.frontends[other].ledger.snapshot().others
                        assert sum(own) == told.get(frontend.replication.bus.replica, 0)
            for _, task, _ in asked:
                await task
            truth = await fleet.truth([body for _, _, body in asked])
            assert [wrong(answer, right) for (answer, _, _), right in zip(asked, truth, strict=True)] == [""] * 16
            await fleet.until(lambda: not fleet.at_rest(), 5.0)

    run_virtual(main)


def test_clients_that_drip_and_clients_that_vanish_hold_nothing_for_long() -> None:
    async def main(loop: VirtualLoop) -> None:
        usual = FrontendSettings.of(ConfigTree()).limits
        async with fleet_of(loop, 1, 1, frontend={"limits": usual}) as fleet:
            slow = await fleet.network.connect("10.0.1.1", 8080)
            heard = bytearray()

            class Ear(asyncio.Protocol):
                def data_received(self, data: bytes) -> None:
                    heard.extend(data)

            slow.begin(Ear())
            began_s = loop.time()
            for byte in b"POST /v1/chat/completions HTTP/1.1\r\nHost: hostname-of-this-machine\r\n":
                slow.write(bytes([byte]))
                await asyncio.sleep(1.0)
                if heard:
                    break
            assert heard.startswith(b"HTTP/1.1 408 "), bytes(heard)
            assert loop.time() - began_s == pytest.approx(60.0, abs=2.0)
            answer, _task, _ = fleet.chat(max_tokens=5_000)
            await fleet.until(lambda: answer.tokens > 3)
            fleet.network.darken("10.9.9.9")  # the client's own host
            await fleet.until(lambda: fleet.engines[0].running == 0, 60.0, 0.5)
            fleet.network.lighten("10.9.9.9")
            await fleet.until(lambda: not fleet.at_rest(), 5.0)

    run_virtual(main)


def test_a_stream_that_can_not_go_on_ends_with_a_whole_event_wherever_it_broke() -> None:
    """The engine dies within an event: half an event before the error would be no JSON to any client."""
    off = FailoverSettings(route=RouteFailoverSettings(retries=0, migration=False))

    async def main(loop: VirtualLoop) -> None:
        async with fleet_of(loop, 1, 1, frontend={"failover": off}) as fleet:
            answer, task, _ = fleet.chat()
            await fleet.until(lambda: answer.tokens > 5)
            fleet.network.drip(fleet.engines[0].address, 0.01)
            await asyncio.sleep(1.53)
            fleet.engines[0].kill()
            await asyncio.wait([task], timeout=30.0)
            assert (answer.broken, answer.done) == ("", False)
            assert answer.error["code"] == "stream_broken"

    run_virtual(main)
