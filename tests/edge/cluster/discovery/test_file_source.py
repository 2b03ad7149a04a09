"""A file of engines through everything that can happen to a file."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pointsman.core.model.errors import ConfigError
from pointsman.edge.cluster.discovery.discovery import DiscoveryState
from pointsman.edge.cluster.discovery.file_source import FileDiscovery
from pointsman.edge.cluster.discovery.record import WorkerRecord
from pointsman.edge.cluster.members import WorkerSource


def source_of(record: WorkerRecord) -> WorkerSource:
    if record.api_key_env is not None:
        raise ConfigError("environment variable is not set")
    return WorkerSource(record.engine_name, str(record.url), weight=record.weight)


class Place:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.offers: list[list[str]] = []
        self.discovery = FileDiscovery(path, source_of, self._offer, lambda: 0.0)

    def _offer(self, sources: Sequence[WorkerSource]) -> None:
        self.offers.append([source.name for source in sources])

    async def look(self, times: int = 2) -> None:
        for _ in range(times):
            await self.discovery.look()

    @property
    def state(self) -> DiscoveryState:
        return self.discovery.status.state


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "engines.yaml")


def urls(*ports: int) -> str:
    return "".join(f"- url: http://h:{port}\n" for port in ports)


async def test_the_first_look_is_enough(place: Place) -> None:
    place.path.write_text(urls(1, 2))
    await place.look(1)
    assert place.offers == [["h:1", "h:2"]]
    assert (place.state, place.discovery.status.engines) == (DiscoveryState.CONNECTED, 2)
    await place.look(50)
    assert len(place.offers) == 1


async def test_json_and_no_engines(place: Place) -> None:
    place.path.write_text('[{"url": "http://h:1", "name": "a"}]')
    await place.look(1)
    place.path.write_text("[]")
    await place.look()
    assert place.offers == [["a"], []]


async def test_a_change_counts_when_two_looks_agree(place: Place) -> None:
    place.path.write_text(urls(1))
    await place.look(1)
    place.path.write_text(urls(1, 2))
    await place.look(1)
    place.path.write_text(urls(1, 2, 3))
    await place.look(1)
    assert place.offers == [["h:1"]]
    await place.look(1)
    assert place.offers == [["h:1"], ["h:1", "h:2", "h:3"]]


async def test_written_slowly(place: Place) -> None:
    """Cut off between two engines it would be a shorter list without a fault."""
    text = urls(1, 2, 3)
    place.path.write_text(text)
    await place.look(1)
    for length in range(len(text)):
        place.path.write_text(text[:length])
        await place.look(1)
    place.path.write_text(text)
    await place.look(5)
    assert place.offers == [["h:1", "h:2", "h:3"]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; write [] for no engines"),
        ("# nothing\n", "is empty"),
        (urls(1) + "- url: http://h:2\n  weigth: 1\n", "engines.yaml:3: [1].weigth: unknown key; did you mean weight?"),
        (urls(1) + "- url: [\n", "engines.yaml:3: this is no valid YAML"),
        ("nodes: []\n", "engines.yaml:1: expected one list of engines"),
        (urls(1) + "---\n" + urls(2), "engines.yaml:3: expected one list of engines"),
        (urls(1, 1), "two engines have the name"),
        (urls(1) + "- url: http://h:2\n  api_key_env: X\n", "engines.yaml:2: environment variable is not set"),
        ("- http://h:1\n", "engines.yaml:1: [0]: expected keys and values"),
    ],
)
async def test_a_broken_file_changes_nothing(place: Place, caplog: pytest.LogCaptureFixture, text: str, message: str):
    place.path.write_text(urls(1, 2))
    await place.look(1)
    place.path.write_text(text)
    await place.look(60)
    assert place.offers == [["h:1", "h:2"]]
    status = place.discovery.status
    assert status.state is DiscoveryState.LOST
    assert message in status.reason
    assert status.engines == 2
    assert sum("can't be read" in record.getMessage() for record in caplog.records) == 1
    place.path.write_text(urls(3))
    await place.look()
    assert place.offers[1:] == [["h:3"]]
    assert place.state is DiscoveryState.CONNECTED


async def test_not_utf8_and_too_long(place: Place) -> None:
    place.path.write_bytes(b"- url: http://h:1\n- \xff\n")
    await place.look(1)
    assert "engines.yaml:2: is not UTF-8" in place.discovery.status.reason
    place.path.write_bytes(b"#" * (16 * 2**20 + 1))
    await place.look()
    assert "is longer than" in place.discovery.status.reason


async def test_without_an_address(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.path.write_text("- url: http://None:8000\n- url: null\n- name: x\n" + urls(1))
    await place.look(60)
    assert place.offers == [["h:1"]]
    status = place.discovery.status
    assert status.state is DiscoveryState.CONNECTED
    assert status.ignored_total == (("no_address", 3),)
    assert [one.reason.partition(": ")[2] for one in status.ignored] == [
        "[0]: it has no address yet",
        "[1]: it has no address yet",
        "[2]: it has no address yet",
    ]
    assert sum("is ignored" in record.getMessage() for record in caplog.records) == 3
    place.path.write_text(urls(1, 8000))
    await place.look()
    assert place.offers[1:] == [["h:1", "h:8000"]]
    assert place.discovery.status.ignored == ()


async def test_missing_at_first_and_for_a_while(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    await place.look(3)
    assert place.offers == []
    assert "No such file" in place.discovery.status.reason
    place.path.write_text(urls(1))
    await place.look()
    place.path.unlink()
    await place.look(3)
    assert place.offers == [["h:1"]]
    assert place.state is DiscoveryState.LOST
    place.path.write_text(urls(1))
    await place.look()
    assert place.state is DiscoveryState.CONNECTED
    assert place.offers == [["h:1"]]
    assert sum("can't be read" in record.getMessage() for record in caplog.records) == 2


async def test_replaced_by_renaming_with_the_same_size_and_time(place: Place) -> None:
    place.path.write_text(urls(1))
    await place.look(1)
    before = place.path.stat()
    new = place.path.with_suffix(".new")
    new.write_text(urls(2))
    os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
    new.replace(place.path)
    await place.look()
    assert place.offers == [["h:1"], ["h:2"]]


async def test_written_in_place_with_the_same_size_and_time(place: Place) -> None:
    """On a file system that keeps whole seconds."""
    place.path.write_text(urls(1))
    await place.look(1)
    before = place.path.stat()
    place.path.write_text(urls(2))
    os.utime(place.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    await place.look(25)
    assert place.offers == [["h:1"], ["h:2"]]


async def test_replaced_as_kubernetes_does(tmp_path: Path) -> None:
    """A ConfigMap is a link to a folder that is a link, and the latter is what is replaced."""
    for name, port in (("..1", 1), ("..2", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "engines.yaml").write_text(urls(port))
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "engines.yaml").symlink_to("..data/engines.yaml")
    place = Place(tmp_path / "engines.yaml")
    await place.look(1)
    (tmp_path / "..tmp").symlink_to("..2")
    (tmp_path / "..tmp").replace(tmp_path / "..data")
    await place.look()
    assert place.offers == [["h:1"], ["h:2"]]


async def test_touched_only(place: Place) -> None:
    place.path.write_text(urls(1))
    await place.look(1)
    os.utime(place.path)
    await place.look(3)
    place.path.write_text("# a comment\n" + urls(1))
    await place.look(3)
    assert place.offers == [["h:1"]]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
async def test_what_is_no_ordinary_file_is_not_opened(place: Place, make: Callable[[Path], None]) -> None:
    """Reading a pipe would hold up the process, even its end."""
    place.path.write_text(urls(1))
    await place.look(1)
    place.path.unlink()
    make(place.path)
    async with asyncio.timeout(60):
        await place.look()
    assert place.state is DiscoveryState.LOST
    assert place.discovery.status.reason.endswith("is no ordinary file")
    assert place.offers == [["h:1"]]
