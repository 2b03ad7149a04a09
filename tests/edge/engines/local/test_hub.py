"""Downloads from a hub on loopback: whole, resumed, wrong, absent, unreachable, at the same time."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from pointsman.core.model.errors import ModelFileError
from pointsman.edge.engines.local import hub
from pointsman.edge.engines.local.model_file import ModelPlaces, resolve
from pointsman.edge.engines.local.model_spec import KnownModel, ModelSpec
from pointsman.edge.engines.local.progress import Progress, no_progress


@dataclass
class FakeHub:
    """Answers the one address that the model has; keeps the Range headers it saw."""

    content: bytes
    status: int = 200
    ranges: bool = True
    cut_after: int | None = None
    seen: list[str | None] = field(default_factory=list)
    url: str = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request.headers.get("Range"))
        if self.status != 200:
            return web.Response(status=self.status)
        body = self.content
        start = 0
        if self.ranges and self.seen[-1] is not None:
            start = int(self.seen[-1].removeprefix("bytes=").removesuffix("-"))
        answer = web.StreamResponse(status=206 if start else 200)
        answer.content_length = len(body) - start
        await answer.prepare(request)
        if self.cut_after is not None:
            await answer.write(body[start : start + self.cut_after])
            assert request.transport is not None
            request.transport.close()
            return answer
        await answer.write(body[start:])
        return answer


@pytest.fixture
async def fake_hub(content: bytes) -> AsyncIterator[FakeHub]:
    fake = FakeHub(content)
    app = web.Application()
    app.router.add_get("/owner/tiny-GGUF/resolve/main/tiny.gguf", fake.answer)
    server = TestServer(app)
    await server.start_server()
    fake.url = str(server.make_url("")).rstrip("/")
    yield fake
    await server.close()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "store" / "tiny.gguf"


async def test_download(fake_hub: FakeHub, known: KnownModel, target: Path, content: bytes) -> None:
    said: list[Progress] = []
    await hub.download(known, fake_hub.url, target, said.append)
    assert target.read_bytes() == content
    assert [path.name for path in target.parent.iterdir()] == ["tiny.gguf"]
    assert said[-1] == Progress("downloading tiny.gguf", len(content), len(content))


@pytest.mark.parametrize("ranges", [True, False])
async def test_a_download_that_broke_is_resumed(
    fake_hub: FakeHub, known: KnownModel, target: Path, content: bytes, ranges: bool
) -> None:
    fake_hub.cut_after = 300_000
    with pytest.raises(ModelFileError):
        await hub.download(known, fake_hub.url, target, no_progress)
    assert not target.exists()
    kept_bytes = (target.parent / "tiny.gguf.part").stat().st_size
    assert 0 < kept_bytes <= 300_000
    fake_hub.cut_after, fake_hub.ranges = None, ranges
    await hub.download(known, fake_hub.url, target, no_progress)
    assert target.read_bytes() == content
    assert fake_hub.seen == [None, f"bytes={kept_bytes}-"]


async def test_wrong_content_is_thrown_away(fake_hub: FakeHub, known: KnownModel, target: Path, content: bytes) -> None:
    fake_hub.content = content[:-1] + b"x"
    with pytest.raises(ModelFileError, match="SHA-256"):
        await hub.download(known, fake_hub.url, target, no_progress)
    assert list(target.parent.iterdir()) == []


async def test_too_much_content_is_refused(fake_hub: FakeHub, known: KnownModel, target: Path) -> None:
    fake_hub.content += b"x"
    with pytest.raises(ModelFileError, match="sends more than"):
        await hub.download(known, fake_hub.url, target, no_progress)
    assert not target.exists()


async def test_two_at_once_download_once(fake_hub: FakeHub, known: KnownModel, target: Path, content: bytes) -> None:
    said: list[Progress] = []
    await asyncio.gather(*(hub.download(known, fake_hub.url, target, said.append) for _ in range(2)))
    assert target.read_bytes() == content
    assert len(fake_hub.seen) == 1
    assert any("another process downloads tiny.gguf" in progress.text for progress in said)


async def test_resolve_asks_the_hub_and_keeps_the_file(
    fake_hub: FakeHub, spec: ModelSpec, places: ModelPlaces, content: bytes
) -> None:
    online = dataclasses.replace(places, hub_url=fake_hub.url)
    found = await resolve(spec, online)
    assert (found.path.read_bytes(), found.origin) == (content, fake_hub.url)
    assert (await resolve(spec, online)).origin == "downloaded earlier"
    assert len(fake_hub.seen) == 1


async def test_each_reason_is_told(fake_hub: FakeHub, spec: ModelSpec, places: ModelPlaces) -> None:
    fake_hub.status = 404
    with pytest.raises(ModelFileError, match=r"answered 404 Not Found.*pass --model PATH"):
        await resolve(spec, dataclasses.replace(places, hub_url=fake_hub.url))
    assert list(places.store.iterdir()) == []
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(ModelFileError, match=f"127.0.0.1:{port}"):
        await resolve(spec, dataclasses.replace(places, hub_url=f"http://127.0.0.1:{port}"))
