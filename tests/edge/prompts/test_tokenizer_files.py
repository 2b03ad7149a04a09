"""Files of a tokenizer: from a directory, a hub's cache, and a hub on loopback."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from pointsman.edge.prompts.errors import TokenizerFilesError
from pointsman.edge.prompts.tokenizer_files import TokenizerFiles, TokenizerPlaces, find_tokenizer


@pytest.fixture
def places(tmp_path: Path) -> TokenizerPlaces:
    return TokenizerPlaces(store=tmp_path / "store", hub_caches=(tmp_path / "hub",), hub_url=None)


def write(folder: Path, **files: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


async def test_a_directory(tmp_path: Path, places: TokenizerPlaces) -> None:
    folder = write(tmp_path / "model", tokenizer_DOT_json={})

    found = await find_tokenizer(str(folder), places)

    assert found == TokenizerFiles(folder, "given")
    assert (found.config(), found.chat_templates()) == ({}, {})


async def test_the_hubs_cache_prefers_main(tmp_path: Path, places: TokenizerPlaces) -> None:
    repository = tmp_path / "hub" / "models--owner--name"
    write(repository / "refs", main="bbb\n")
    for revision in ("aaa", "bbb", "ccc"):
        write(repository / "snapshots" / revision, tokenizer_DOT_json={})

    found = await find_tokenizer("owner/name", places)

    assert (found.folder.name, found.origin) == ("bbb", "Hugging Face cache")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("{}/empty", "has no tokenizer.json.*let the engine tokenize"),
        ("{}/nowhere", "no such directory"),
        ("../../etc", "no such directory|has no tokenizer.json"),
        ("owner/name", "hub is switched off"),
    ],
)
async def test_what_is_missing_is_said(tmp_path: Path, places: TokenizerPlaces, model: str, said: str) -> None:
    (tmp_path / "empty").mkdir()

    with pytest.raises(TokenizerFilesError, match=said):
        await find_tokenizer(model.format(tmp_path), places)


LISTED = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]


@pytest.mark.parametrize(
    ("files", "templates"),
    [
        ({"tokenizer_config_DOT_json": {"chat_template": "a"}}, {"default": "a"}),
        ({"tokenizer_config_DOT_json": {"chat_template": LISTED}}, {"default": "a", "tool_use": "b"}),
        ({"tokenizer_config_DOT_json": {"chat_template": "a"}, "chat_template_DOT_jinja": "c"}, {"default": "c"}),
        ({"chat_template_DOT_json": {"chat_template": "d"}}, {"default": "d"}),
        (
            {"chat_template_DOT_jinja": "c", "additional_chat_templates__tool_use_DOT_jinja": "t"},
            {"default": "c", "tool_use": "t"},
        ),
    ],
)
def test_templates(tmp_path: Path, files: dict[str, object], templates: dict[str, str]) -> None:
    assert TokenizerFiles(write(tmp_path, **files), "given").chat_templates() == templates


def test_special_tokens_of_older_files(tmp_path: Path) -> None:
    older = write(tmp_path / "a", tokenizer_config_DOT_json={"x": 1}, special_tokens_map_DOT_json={"bos_token": "<s>"})
    newer = write(
        tmp_path / "b",
        tokenizer_config_DOT_json={"added_tokens_decoder": {}},
        special_tokens_map_DOT_json={"bos_token": "<s>"},
    )

    assert TokenizerFiles(older, "given").config() == {"x": 1, "bos_token": "<s>"}
    assert TokenizerFiles(newer, "given").config() == {"added_tokens_decoder": {}}


@pytest.mark.parametrize("content", ["{", "[1]", '{"chat_template": 7}', '{"chat_template": [{"name": 1}]}'])
def test_a_broken_file_is_named(tmp_path: Path, content: str) -> None:
    files = TokenizerFiles(write(tmp_path, tokenizer_config_DOT_json=content), "given")

    with pytest.raises(TokenizerFilesError, match=str(tmp_path)):
        files.chat_templates()


@dataclass
class FakeHub:
    files: dict[str, str] = field(default_factory=dict)
    status: int = 404
    asked: list[str] = field(default_factory=list)
    authorization: str | None = None
    url: str = ""

    async def answer(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        self.asked.append(name)
        self.authorization = request.headers.get("Authorization")
        return web.Response(text=self.files[name]) if name in self.files else web.Response(status=self.status)


@pytest.fixture
async def hub() -> AsyncIterator[FakeHub]:
    fake = FakeHub({"tokenizer.json": "{}", "chat_template.jinja": "c"})
    app = web.Application()
    app.router.add_get("/owner/name/resolve/main/{name}", fake.answer)
    server = TestServer(app)
    await server.start_server()
    fake.url = str(server.make_url("")).rstrip("/")
    yield fake
    await server.close()


async def test_download_once(hub: FakeHub, places: TokenizerPlaces) -> None:
    online = replace(places, hub_url=hub.url, hub_token="secret")

    found = await find_tokenizer("owner/name", online)
    again = await find_tokenizer("owner/name", places)

    assert found.chat_templates() == {"default": "c"}
    assert sorted(path.name for path in found.folder.iterdir()) == ["chat_template.jinja", "tokenizer.json"]
    assert [path.name for path in places.store.iterdir()] == ["models--owner--name"]
    assert (again.folder, again.origin) == (found.folder, "downloaded earlier")
    assert hub.asked.count("tokenizer.json") == 1
    assert hub.authorization == "Bearer secret"


@pytest.mark.parametrize(("status", "said"), [(404, "answered 404"), (401, "answered 401"), (500, "answered 500")])
async def test_a_hub_that_gives_none(hub: FakeHub, places: TokenizerPlaces, status: int, said: str) -> None:
    hub.files.clear()
    hub.status = status

    with pytest.raises(TokenizerFilesError, match=said):
        await find_tokenizer("owner/name", replace(places, hub_url=hub.url))

    assert list(places.store.iterdir()) == []


async def test_half_a_download_is_none(hub: FakeHub, places: TokenizerPlaces) -> None:
    hub.status = 500  # for the files after the first

    with pytest.raises(TokenizerFilesError, match=r"tokenizer_config\.json answered 500"):
        await find_tokenizer("owner/name", replace(places, hub_url=hub.url))

    assert list(places.store.iterdir()) == []
