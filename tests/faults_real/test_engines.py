"""Engines that are killed, stopped, cut off or replaced while official clients read streams from them."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from .conftest import ROUNDS, Asked, Site

pytestmark = pytest.mark.faults
PROCESSES = pytest.mark.parametrize("processes", [1, 3], ids=["alone", "3 processes"])


async def some_wait_for(site: Site, number: int, count: int) -> list[Asked]:
    """So many streams, or several times so many, of which one at least is sent to that engine, that holds it up."""
    asked: list[Asked] = []

    def sent() -> bool:
        workers = [worker for status in site.quick_statuses() for worker in status["workers"]]
        return any(worker["running"] for worker in workers if worker["id"] == site.worker(number))

    for _ in range(ROUNDS):
        news = [site.ask() for _ in range(count)]
        asked += news
        # Those at the other engines have begun by then, or they wait for this one, too.
        await site.until(lambda news=news: sent() or all(one.pieces for one in news))  # type: ignore[misc]
        if sent():
            return asked
    raise AssertionError(f"nothing was sent to engine {number}")


async def back(site: Site, fleet: int) -> None:
    """All engines get requests again."""
    await site.until(lambda: site.usable() == fleet)


@PROCESSES
async def test_kill_9_before_the_first_token(site: Site, processes: int) -> None:
    await site.add_engines(3)
    await site.serve(processes)
    await site.engines[0].set_faults(first_byte_delay_ms=60_000)
    asked = await some_wait_for(site, 0, 6)
    await site.engines[0].kill()
    asked += [site.ask() for _ in range(3)]
    await site.all_right(asked)
    assert site.says("lost") or site.says("refused")
    await site.at_rest()


@PROCESSES
async def test_kill_9_mid_stream(site: Site, processes: int) -> None:
    await site.add_engines(3)
    await site.serve(processes)
    asked = await site.begun(6, at=0)
    await site.engines[0].kill()
    asked += [site.ask() for _ in range(3)]
    await site.all_right(asked)
    assert await site.migrations() > 0
    assert site.says("lost") or site.says("refused")
    await site.engines[0].start()
    await back(site, 3 * processes)
    await site.at_rest()


async def test_kill_9_during_drain(site: Site, call: Any) -> None:
    await site.add_engines(3)
    await site.serve(3)
    asked = await site.begun(6, at=0)
    name = f"127.0.0.1:{site.engines[0].port}"
    for admin in site.admin_ports():
        call("POST", f"http://127.0.0.1:{admin}/v1/workers/{name}/drain")
    more = [site.ask() for _ in range(3)]
    await site.until(lambda: all(one.pieces for one in more))
    assert all(one.worker != f"{name}/0" for one in more), "it drains, and got new work"
    await site.engines[0].kill()
    await site.all_right(asked + more)
    assert site.says("drain")
    await site.at_rest()


async def test_sigstop_mid_stream(site: Site) -> None:
    await site.add_engines(3)
    await site.serve(3)
    asked = await site.begun(6, at=0)
    site.engines[0].signal(signal.SIGSTOP)
    asked += [site.ask() for _ in range(3)]
    await site.all_right(asked)  # while it is still stopped
    assert site.says("not answered within") or site.says("no token")
    site.engines[0].signal(signal.SIGCONT)
    await back(site, 9)
    await site.at_rest()


async def test_sigstop_before_the_first_token_is_waited_for(site: Site) -> None:
    await site.add_engines(2)
    await site.serve()
    await site.engines[0].set_faults(first_byte_delay_ms=2_000)
    asked = await some_wait_for(site, 0, 4)
    site.engines[0].signal(signal.SIGSTOP)
    await asyncio.sleep(5)
    site.engines[0].signal(signal.SIGCONT)
    await site.all_right(asked)
    await site.at_rest()


@pytest.mark.parametrize("moment", ["before the first token", "mid-stream"])
async def test_connections_are_reset(site: Site, proxy: Any, moment: str) -> None:
    await site.add_engines(2)
    way = await proxy(site.engines[0].port)
    await site.serve(urls=[way.url, site.engines[1].url])
    if moment == "mid-stream":
        asked = await site.begun(6, at=0)
    else:
        await site.engines[0].set_faults(first_byte_delay_ms=3_000)
        asked = await some_wait_for(site, 0, 6)
    assert way.open
    way.reset()
    await site.all_right(asked)
    assert site.says("reset")
    await back(site, 2)
    await site.at_rest()


async def test_half_open_connections(site: Site, proxy: Any) -> None:
    await site.add_engines(2)
    way = await proxy(site.engines[0].port)
    await site.serve(urls=[way.url, site.engines[1].url])
    asked = await site.begun(6, at=0)
    way.half_open()
    await site.all_right(asked)
    await back(site, 2)
    await site.at_rest()


async def test_an_answer_that_drips(site: Site, proxy: Any) -> None:
    await site.add_engines(2)
    way = await proxy(site.engines[0].port)
    await site.serve(urls=[way.url, site.engines[1].url])
    asked = await site.begun(6, at=0)
    way.drip_s = 0.5
    more = [site.ask() for _ in range(2)]
    await asyncio.sleep(8)
    way.drip_s = None
    await site.all_right(asked + more)
    await back(site, 2)
    await site.at_rest()


async def test_500s(site: Site) -> None:
    await site.add_engines(2)
    await site.serve()
    await site.engines[0].set_faults(error_status=500)
    asked = [site.ask() for _ in range(8)]
    await site.all_right(asked)
    assert site.says("500")
    await site.engines[0].set_faults()
    await back(site, 2)
    await site.at_rest()


async def test_streams_that_break_with_an_error(site: Site) -> None:
    await site.add_engines(2)
    await site.serve()
    await site.engines[0].set_faults(error_after_tokens=20)
    asked = [site.ask() for _ in range(4)]
    await site.all_right(asked)
    assert site.says("error_event")
    await site.at_rest()


async def test_restart_with_an_empty_cache(site: Site) -> None:
    port = site.port()
    await site.add_engines(1, "--kv-events", f"tcp://127.0.0.1:{port}", "--replay", f"tcp://127.0.0.1:{site.port()}")
    await site.add_engines(1)
    await site.serve()
    asked = await site.begun(6, at=0)

    def told() -> dict[str, Any]:
        (status,) = site.quick_statuses()
        found: dict[str, Any] = next(one for one in status["workers"] if one["id"] == site.worker(0))
        return found

    def believed() -> int:
        return sum(told()["kv"]["blocks"].values())

    assert believed() >= 15, "not even one prompt is known to be there"
    await site.engines[0].kill()
    await site.until(lambda: told()["running"] == 0)  # else they might go on where they were
    await site.engines[0].start()
    await site.all_right(asked)
    await back(site, 2)
    await site.at_rest()
    # No old prompt is believed to be there; that of the check which it gets when it comes back may be.
    await site.until(lambda: believed() < 15)
