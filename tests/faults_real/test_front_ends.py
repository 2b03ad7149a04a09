"""Front ends that are killed, replaced and told anew, engines that join and leave, an etcd that comes and goes."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.etcd_server import EtcdServer

from .conftest import Engine, Site

pytestmark = pytest.mark.faults


def front_ends(site: Site) -> list[psutil.Process]:
    """Processes of `serve --processes`, without the one that looks after them."""
    assert site.front_end is not None
    return [process for process in site.front_end.family() if process.pid != site.front_end.process.pid]


def known(site: Site) -> int:
    """Workers that are there by the front end's word, be they slow to answer just now or not."""
    (status,) = site.quick_statuses()
    return len(status["workers"])


async def test_one_of_three_front_ends_is_killed(site: Site) -> None:
    await site.add_engines(2)
    await site.serve(3)
    before = {status["replicas"]["replica"] for status in site.quick_statuses()}
    assert len(before) == 3
    asked = await site.begun(12)
    front_ends(site)[0].kill()
    await site.until(lambda: all(one.over for one in asked))
    broken = [one for one in asked if one.error]
    assert len(broken) < len(asked), "only streams of the one that died may break"
    await site.all_right([one for one in asked if not one.error])
    again = [site.ask() for _ in range(len(broken) + 3)]
    await site.all_right(again)
    await site.until(lambda: site.usable() == 6)
    await site.at_rest()
    after = {status["replicas"]["replica"] for status in site.quick_statuses()}
    assert len(after - before) == 1, "the dead one was not replaced by a new one"


async def test_front_ends_are_replaced_while_an_engine_dies(site: Site) -> None:
    await site.add_engines(3)
    await site.serve(3)
    pids = {process.pid for process in front_ends(site)}
    asked = await site.begun(9)
    assert site.front_end is not None
    site.front_end.process.send_signal(signal.SIGHUP)
    asked += [site.ask() for _ in range(3)]
    await site.engines[0].kill()
    for _ in range(10):
        asked.append(site.ask())
        await asyncio.sleep(0.2)
    await asyncio.to_thread(site.front_end.line, "all front ends are replaced")
    asked += [site.ask() for _ in range(3)]
    await site.all_right(asked)
    await site.until(lambda: not pids & {process.pid for process in front_ends(site)})
    await site.at_rest()


async def test_configuration_is_read_again_under_load(site: Site) -> None:
    await site.add_engines(3)
    await site.serve(1, urls=[site.engines[0].url, site.engines[1].url])
    asked = await site.begun(4, at=0)
    urls = [engine.url for engine in site.engines]
    for nodes, policy in ((urls, "least_loaded"), (urls[1:], "round_robin"), (urls, "cost")):
        site.write_config([{"url": url} for url in nodes], routing={"policy": policy})
        done = site.run("reload", "--admin-url", site.admin_url)
        assert await asyncio.to_thread(done.process.wait, 60) == 0, done.rest()
        asked += [site.ask() for _ in range(3)]
        await asyncio.sleep(0.5)
    site.config.write_text("routing: {polycy: kv}\n")
    refused = site.run("reload", "--admin-url", site.admin_url)
    assert await asyncio.to_thread(refused.process.wait, 60) != 0
    assert any("polycy" in line for line in refused.rest())
    asked += [site.ask() for _ in range(3)]
    await site.all_right(asked)
    assert {one.worker for one in asked} >= {f"127.0.0.1:{engine.port}/0" for engine in site.engines}
    assert site.quick_statuses()[0]["policy"] == "cost"
    await site.at_rest()


async def test_an_engine_that_joined_drains_on_sigterm(site: Site) -> None:
    await site.add_engines(1)
    await site.serve()
    joining = Engine(site, site.port(), "--join", site.admin_url, "--join-ttl", "3s", "--drain-grace", "30s")
    await joining.start()
    site.engines.append(joining)
    await site.until(lambda: site.usable() == 2)
    asked = await site.begun(6, at=1)
    name = site.worker(1)
    joining.signal(signal.SIGTERM)
    await site.until(lambda: site.usable() == 1)
    more = [site.ask() for _ in range(4)]
    await site.all_right(asked + more)
    assert all(one.worker != name for one in more)
    # Who was there was not cut: nobody had to go on with it.
    assert await site.migrations() == 0
    assert joining.running is not None
    assert await asyncio.to_thread(joining.running.process.wait, 60) == 0
    site.engines.remove(joining)
    await site.until(lambda: known(site) == 1)
    await site.at_rest()


async def test_etcd_is_stopped_started_and_wiped(site: Site, tmp_path: Path) -> None:
    (tmp_path / "etcd").mkdir()
    etcd = EtcdServer(tmp_path / "etcd")
    await etcd.start()
    place = etcd.url.replace("http://", "etcd://")
    await site.add_engines(2, "--join", place, "--join-ttl", "3s")
    sections: dict[str, Any] = {
        "etcd": {"endpoints": [etcd.url]},
        "discovery": {"etcd": True, "resync_interval": "2s", "vanish_grace": "10s"},
    }
    await site.serve(1, urls=[], **sections)
    try:
        await site.until(lambda: site.usable() == 2)
        asked = [site.ask() for _ in range(2)]
        await etcd.stop()
        for _ in range(6):  # longer than the leases
            asked.append(site.ask())
            await asyncio.sleep(1)
        assert known(site) == 2, "engines left although only etcd did"
        await etcd.start()
        asked += [site.ask() for _ in range(2)]
        await etcd.wipe()
        await etcd.start()
        for _ in range(6):
            asked.append(site.ask())
            await asyncio.sleep(1)
        assert known(site) == 2, "engines that registered again were dropped"
        await site.all_right(asked)
        await site.engines[1].kill()
        asked = [site.ask() for _ in range(3)]
        await site.until(lambda: known(site) == 1)
        await site.all_right(asked)
        await site.at_rest()
    finally:
        await etcd.stop()
