"""Engines that really compute, killed and stopped while official clients read from them."""

from __future__ import annotations

import signal

import pytest

from .conftest import Site

pytestmark = pytest.mark.faults


@pytest.fixture
def embedded(site: Site) -> Site:
    """Engines of the tiny model. They take a millisecond a step, so answers are long."""
    site.kind, site.tokens = "embedded", 800
    return site


@pytest.mark.parametrize("processes", [1, 3], ids=["alone", "3 processes"])
async def test_kill_9_mid_stream(embedded: Site, processes: int) -> None:
    site = embedded
    await site.add_engines(2)
    await site.serve(processes)
    asked = await site.begun(4, at=0)
    dies = site.engines[0]
    await dies.kill()
    asked += [site.ask() for _ in range(2)]
    await site.all_right(asked)
    assert site.says("lost") or site.says("refused")
    await dies.start()
    await site.until(lambda: site.usable() == 2 * processes)
    await site.at_rest()


async def test_sigstop_mid_stream(embedded: Site) -> None:
    site = embedded
    await site.add_engines(2)
    await site.serve()
    asked = await site.begun(4, at=0)
    stands = site.engines[0]
    stands.signal(signal.SIGSTOP)
    await site.all_right(asked)
    assert site.says("not answered within") or site.says("no token")
    stands.signal(signal.SIGCONT)
    await site.until(lambda: site.usable() == 2)
    await site.at_rest()


async def test_sigterm_mid_stream_drains_an_engine_that_joined(embedded: Site) -> None:
    site = embedded
    await site.add_engines(1)
    await site.serve()
    await site.add_engines(1, "--join", site.admin_url, "--join-ttl", "3s", "--drain-grace", "30s")
    await site.until(lambda: site.usable() == 2)
    asked = await site.begun(4, at=1)
    site.engines[1].signal(signal.SIGTERM)
    await site.all_right(asked)
    await site.until(lambda: site.usable() == 1)
    await site.at_rest()
