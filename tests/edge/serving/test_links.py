"""Measured links reach the ledger from a file and over the admin port, and are shown."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pointsman.core.ledger.events import LinkMeasured
from pointsman.core.model.errors import ConfigError
from pointsman.core.timing.link_learning import LinkRow
from pointsman.core.timing.link_priors import HOPE
from pointsman.core.timing.link_times import LinkEstimate
from pointsman.edge.configuration.links_file import LinksFile, SavedLink, SavedSample, save_links
from pointsman.edge.configuration.loader import load_file, load_text
from pointsman.edge.configuration.tree import ConfigTree
from pointsman.edge.serving.frontend import Frontend
from pointsman.edge.serving.link_feed import SLICE, LinkFeed
from pointsman.edge.serving.link_metrics import MOST_SHOWN, LinkCollector
from pointsman.edge.serving.reload.source import ConfigSource
from pointsman.edge.serving.settings import FrontendSettings
from support.waiting import eventually

PLAIN = "control-plane: {listen_port: 0, admin_port: 0}\n"


def link(source: str = "a", target: str = "b", gb_per_s: float = 1.0, sizes: tuple[int, ...] = (1 << 20,)) -> SavedLink:
    samples = tuple(SavedSample(size_bytes=size, took_ms=0.1 + size / gb_per_s / 1e6) for size in sizes)
    return SavedLink(source=source, target=target, samples=samples, round_trip_ms=0.0 if len(sizes) == 1 else 0.1)


def links_file(*links: SavedLink) -> LinksFile:
    return LinksFile(version=1, links=links)


class Served:
    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.session: aiohttp.ClientSession

    async def begin(self, text: str, path: Path | None = None) -> Frontend:
        tree = load_text(text, "x.yaml", ConfigTree)
        source = None
        if path is not None:
            source = ConfigSource(tree, lambda: load_file(path), lambda t: FrontendSettings.of(t, {}), lambda: None)
        self.frontend = Frontend(FrontendSettings.of(tree, {}), config=source)
        await self.frontend.start()
        self._stack.push_async_callback(self.frontend.close)
        self.session = await self._stack.enter_async_context(aiohttp.ClientSession())
        return self.frontend

    async def get(self, path: str) -> str:
        async with self.session.get(self.frontend.admin_url + path) as answer:
            assert answer.status == 200
            return await answer.text()

    async def post(self, body: Any) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(f"{self.frontend.admin_url}/v1/links", data=data) as answer:
            return answer.status, await answer.json()

    async def links(self) -> dict[tuple[str, str], Any]:
        return {(row["source"], row["target"]): row for row in json.loads(await self.get("/v1/links"))["links"]}


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with AsyncExitStack() as stack:
        yield Served(stack)


async def test_what_was_measured_is_known_from_the_start(served: Served, tmp_path: Path) -> None:
    path = tmp_path / "links.yaml"
    sizes = (64 << 10, 1 << 20, 16 << 20)
    save_links(path, links_file(link("a", "b", 0.125, sizes), link("b", "a", 1.25, sizes)))
    await served.begin(PLAIN + f"links: {{file: {path}}}")
    links = await served.links()
    assert links["a", "b"]["gb_per_s"]["16MiB"] == pytest.approx(0.125, rel=0.1)
    assert links["b", "a"]["gb_per_s"]["16MiB"] == pytest.approx(1.25, rel=0.1)
    assert links["a", "b"]["floor_ms"] == pytest.approx(0.1, rel=0.3)
    assert links["a", "b"]["seen"] > 2
    text = await served.get("/metrics")
    assert "pointsman_links 2.0" in text
    assert 'pointsman_link_bytes_per_ms{size="16MiB",source="a",target="b"}' in text


async def test_priors_of_the_configuration_hold_until_something_is_measured(served: Served) -> None:
    frontend = await served.begin(PLAIN + "links: {priors: {network: '2.5GB/s:3ms'}}")
    assert await served.links() == {}
    frontend.emit(LinkMeasured("a", "b", 0.0, 1 << 20, 3.0 + (1 << 20) / 2.5e6))
    times = frontend.ledger.timing.links  # type: ignore[attr-defined]
    assert times.of(0, 1).floor_ms == pytest.approx(3.0, rel=0.05)
    assert times.otherwise.floor_ms == 3.0 / HOPE


async def test_measurements_over_the_admin_port_are_known_at_once(served: Served) -> None:
    await served.begin(PLAIN)
    body = json.loads(json.dumps({"version": 1, "links": [{"source": "a", "target": "b", "samples": []}]}))
    body["links"][0]["samples"] = [{"size_bytes": 16 << 20, "took_ms": 2700.0}] * 3
    assert await served.post(body) == (200, {"links": 1, "measurements": 3, "without_engines": ["a", "b"]})
    assert (await served.links())["a", "b"]["gb_per_s"]["16MiB"] == pytest.approx(0.0062, rel=0.1)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "doctor links"),
        ({"version": 2, "links": []}, "version"),
        ({"version": 1}, "links"),
        (
            {"version": 1, "links": [{"source": "a", "target": "b", "samples": [{"size_bytes": 1, "took_ms": -1}]}]},
            "took",
        ),
        ({"version": 1, "links": [{"source": "a", "target": "b", "hops": 1, "samples": []}]}, "hops"),
        (b"[" * 5000, "doctor links"),
    ],
)
async def test_a_body_that_is_none_is_refused(served: Served, body: Any, said: str) -> None:
    await served.begin(PLAIN)
    status, answer = await served.post(body)
    assert status == 400
    assert said in answer["error"]["message"]
    assert await served.links() == {}


async def test_a_file_that_is_broken_ends_the_start(tmp_path: Path) -> None:
    path = tmp_path / "links.yaml"
    path.write_text("version: 9\n")
    tree = load_text(PLAIN + f"links: {{file: {path}}}", "x.yaml", ConfigTree)
    with pytest.raises(ConfigError, match=r"^links\.file: .*links\.yaml:1: version"):
        FrontendSettings.of(tree, {})
    path.unlink()
    with pytest.raises(ConfigError, match=r"^links\.file: .*links\.yaml: can't be read: No such file"):
        FrontendSettings.of(tree, {})


async def test_a_reload_that_names_another_file_reads_it(served: Served, tmp_path: Path) -> None:
    path, config = tmp_path / "links.yaml", tmp_path / "pointsman.yaml"
    save_links(path, links_file(link()))
    frontend = await served.begin(PLAIN, config)
    config.write_text(PLAIN + f"links: {{file: {path}}}")
    report = await frontend.reload("a test")
    assert report.changed == ["links.file"]
    assert not report.needs_restart
    assert ("a", "b") in await served.links()
    assert (await frontend.reload("a test")).changed == []
    save_links(path, links_file(link(), link("b", "a")))
    assert (await frontend.reload("a test")).changed == ["links.file"]
    assert ("b", "a") in await served.links()
    config.write_text(PLAIN + f"links: {{file: {path}, priors: {{node: roce}}}}")
    assert (await frontend.reload("a test")).needs_restart == ["links.priors"]


async def test_many_measurements_are_told_bit_by_bit_and_none_is_lost() -> None:
    told: list[object] = []
    learned = 0

    def learn() -> None:
        nonlocal learned
        learned += 1

    feed = LinkFeed(told.append, learn, lambda: 5.0)
    links = [link(f"n{i}", "x") for i in range(3 * SLICE)]
    assert feed.tell(links, "a test") == 3 * SLICE
    assert len(told) == SLICE
    await eventually(lambda: len(told) == 3 * SLICE)
    await eventually(lambda: learned == 4)
    assert told[-1] == LinkMeasured(f"n{3 * SLICE - 1}", "x", 5.0, 1 << 20, links[-1].samples[0].took_ms)
    await feed.close()


async def test_the_log_and_the_status_say_which_machines_of_the_file_have_no_engines(
    caplog: pytest.LogCaptureFixture, served: Served, tmp_path: Path
) -> None:
    feed = LinkFeed(lambda event: None, lambda: None, lambda: 5.0, lambda: {"w": "a"}, look_s=0.0)
    feed.tell_file((link("a", "10.0.0.1"),))
    await eventually(lambda: "have no engines here (10.0.0.1)" in caplog.text)
    assert "engines are on: a." in caplog.text
    await feed.close()
    path = tmp_path / "links.yaml"
    save_links(path, links_file(link("a", "b")))
    await served.begin(PLAIN + f"links: {{file: {path}}}")
    assert json.loads(await served.get("/v1/status"))["kv_links"]["without_engines"] == ["a", "b"]


async def test_a_feed_that_is_closed_tells_no_more() -> None:
    told: list[object] = []
    feed = LinkFeed(told.append, lambda: None, lambda: 5.0)
    feed.tell([link(f"n{i}", "x") for i in range(3 * SLICE)], "a test")
    await feed.close()
    assert len(told) == SLICE


def test_metrics_show_a_bounded_number_of_directions() -> None:
    rows = [LinkRow(f"n{i}", "x", LinkEstimate(seen=float(i))) for i in range(2 * MOST_SHOWN)]
    families = {family.name: family for family in LinkCollector(lambda: rows).collect()}
    assert families["pointsman_links"].samples[0].value == 2 * MOST_SHOWN
    floors = families["pointsman_link_floor_ms"].samples
    assert len(floors) == MOST_SHOWN
    assert floors[0].labels == {"source": f"n{2 * MOST_SHOWN - 1}", "target": "x"}
    assert len(families["pointsman_link_bytes_per_ms"].samples) == 4 * MOST_SHOWN
