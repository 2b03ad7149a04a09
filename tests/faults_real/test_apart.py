"""Prefill and decode apart between engines that really compute, which are killed and stopped meanwhile.

Every answer is the one of an engine alone, bit for bit, and no engine is left with KV for somebody.
"""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any

import pytest

from .conftest import LIMIT_S, ROUNDS, Asked, Engine, Site

pytestmark = pytest.mark.faults
LEASE_S = 600.0
"""For which engines keep what nobody fetches: far longer than any test waits for it to be freed."""
ROLES = ["prefill", "decode", "decode"]


@pytest.fixture
def apart(site: Site) -> Site:
    """Engines of the tiny model; prompts are long, so that there is a time in which they are computed."""
    site.kind, site.tokens, site.words = "embedded", 30, 100
    return site


async def served(site: Site, processes: int = 1, lease_s: float = LEASE_S, **routing: Any) -> None:
    await site.add_engines(3, "--kv-lease-s", str(lease_s))
    await site.serve(processes, roles=ROLES, routing={"kv_transfer": "always", **routing})


async def held(engine: Engine) -> float:
    """Blocks that it keeps for others."""
    return await engine.figure("pointsman_kv_held_blocks")


async def reaches(engine: Engine, name: str, least: float = 1.0) -> None:
    """Until a figure of an engine is so high."""
    async with asyncio.timeout(LIMIT_S):
        while await engine.figure(name) < least:
            await asyncio.sleep(0.01)


async def computing(site: Site, count: int) -> list[Asked]:
    """So many streams, or several times so many where the machine is fast: a prompt of the last ones is computed."""
    asked: list[Asked] = []
    for _ in range(ROUNDS):
        news = [site.ask() for _ in range(count)]
        asked += news
        async with asyncio.timeout(LIMIT_S):
            while not all(one.pieces or one.over for one in news):
                if await site.engines[0].figure("vllm:num_requests_running"):
                    return asked
                await asyncio.sleep(0.005)
    raise AssertionError("no prompt was seen while it was computed")


async def freed(site: Site) -> None:
    """No engine keeps anything for others."""
    async with asyncio.timeout(LIMIT_S):
        for engine in site.engines:
            if engine.running is not None and engine.running.process.poll() is None:
                while await held(engine) or await engine.at_work():
                    await asyncio.sleep(0.05)


async def fallbacks(site: Site) -> float:
    """Requests whose prompt was computed where they were answered, after all."""
    front_end = Engine(site, int(site.admin_url.rpartition(":")[2]))
    return await front_end.figure("pointsman_transfer_fallbacks_total")


async def moved(site: Site) -> float:
    """Tokens that came from another engine."""
    found = 0.0
    for engine in site.engines:
        if engine.running is not None and engine.running.process.poll() is None:
            found += await engine.figure("vllm:nixl_bytes_transferred_sum")
    return found


@pytest.mark.parametrize("processes", [1, 3], ids=["alone", "3 processes"])
async def test_nobody_disturbs_them(apart: Site, processes: int) -> None:
    site = apart
    await served(site, processes)
    asked = [site.ask() for _ in range(4)]
    await site.all_right(asked)
    assert await moved(site) > 0
    explained = site.run("explain", "--last", "4", "--json", "--admin-url", site.admin_url)
    explained.process.wait(30)
    text = "\n".join(explained.rest())
    assert f"127.0.0.1:{site.engines[0].port}/0" in json.dumps(json.loads(text)), text
    await freed(site)
    await site.at_rest()


async def test_the_engine_for_prompts_is_killed_with_prompts(apart: Site) -> None:
    site = apart
    await served(site)
    asked = await computing(site, 4)
    await site.engines[0].kill()
    asked += [site.ask() for _ in range(2)]
    await site.all_right(asked)
    assert await fallbacks(site) >= 1
    await site.engines[0].start()
    await site.until(lambda: site.usable() == 3)
    await freed(site)
    await site.at_rest()


async def test_the_engine_for_prompts_is_stopped_with_prompts(apart: Site) -> None:
    site = apart
    await served(site, lease_s=30.0)
    asked = await computing(site, 3)
    site.engines[0].signal(signal.SIGSTOP)
    # What was computed just before is fetched from it all the same; these find out that it stands still.
    asked += [site.ask() for _ in range(2)]
    await site.all_right(asked)
    assert await fallbacks(site) >= 1
    site.engines[0].signal(signal.SIGCONT)
    await site.until(lambda: site.usable() == 3)
    await freed(site)  # what it could not be told is freed with its lease
    await site.at_rest()


async def between_the_legs(site: Site) -> list[Asked]:
    """Both engines that answer stand still, and prompts are computed: nobody fetches them."""
    for engine in site.engines[1:]:
        engine.signal(signal.SIGSTOP)
    asked = [site.ask() for _ in range(2)]
    await reaches(site.engines[0], "pointsman_kv_leases", 2)
    return asked


async def test_an_engine_that_is_to_answer_is_killed_between_the_legs(apart: Site) -> None:
    site = apart
    await served(site)
    asked = await between_the_legs(site)
    site.engines[2].signal(signal.SIGCONT)
    await site.engines[1].kill()
    await site.all_right(asked)
    assert {one.worker for one in asked} == {f"127.0.0.1:{site.engines[2].port}/0"}
    await freed(site)
    await site.at_rest()


async def test_the_engine_for_prompts_is_killed_between_the_legs(apart: Site) -> None:
    site = apart
    await served(site)
    asked = await between_the_legs(site)
    await site.engines[0].kill()
    for engine in site.engines[1:]:
        engine.signal(signal.SIGCONT)
    await site.all_right(asked)
    await freed(site)
    await site.at_rest()


async def test_clients_leave_between_the_legs(apart: Site) -> None:
    site = apart
    await served(site)
    await between_the_legs(site)
    for task in tuple(site._tasks):
        task.cancel()
    async with asyncio.timeout(LIMIT_S):
        while await held(site.engines[0]):
            await asyncio.sleep(0.05)
    for engine in site.engines[1:]:
        engine.signal(signal.SIGCONT)
    await freed(site)
    await site.at_rest()
