"""Where a model's file is found, and in which order."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import pytest

from pointsman.core.model.errors import ModelFileError
from pointsman.edge.engines.local.model_file import ModelPlaces, resolve
from pointsman.edge.engines.local.model_spec import KnownModel, ModelSpec


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


async def test_a_path_is_taken_as_it_is(tmp_path: Path, places: ModelPlaces) -> None:
    file = put(tmp_path / "my.model.gguf", b"GGUF and more")
    found = await resolve(ModelSpec.parse(str(file)), places)
    assert (found.name, found.path, found.origin) == ("my.model", file, "given")
    assert (await resolve(ModelSpec.parse(f"mine={file}"), places)).name == "mine"


async def test_a_directory_with_one_file(tmp_path: Path, places: ModelPlaces) -> None:
    file = put(tmp_path / "m" / "a.gguf", b"GGUF")
    put(tmp_path / "m" / "README.md", b"")
    assert (await resolve(ModelSpec.parse(str(tmp_path / "m")), places)).path == file
    put(tmp_path / "m" / "b.gguf", b"GGUF")
    with pytest.raises(ModelFileError, match=r"exactly one \.gguf file \(found a\.gguf, b\.gguf\)"):
        await resolve(ModelSpec.parse(str(tmp_path / "m")), places)


async def test_a_path_that_is_no_model(tmp_path: Path, places: ModelPlaces) -> None:
    with pytest.raises(ModelFileError, match="there is no such file"):
        await resolve(ModelSpec.parse(str(tmp_path / "absent.gguf")), places)
    with pytest.raises(ModelFileError, match="is no GGUF file"):
        await resolve(ModelSpec.parse(str(put(tmp_path / "a.gguf", b"ZZZZ"))), places)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelFileError, match="found none"):
        await resolve(ModelSpec.parse(str(tmp_path / "empty")), places)


async def test_the_hub_cache_comes_before_the_store(
    tmp_path: Path, places: ModelPlaces, spec: ModelSpec, content: bytes
) -> None:
    stored = put(places.store / "tiny.gguf", content)
    assert (await resolve(spec, places)).path == stored
    cached = put(tmp_path / "hub" / "models--owner--tiny-GGUF" / "snapshots" / "abc" / "tiny.gguf", content)
    found = await resolve(spec, places)
    assert (found.path, found.name, found.origin) == (cached, "tiny", "Hugging Face cache")


async def test_a_damaged_copy_is_not_used(
    places: ModelPlaces, spec: ModelSpec, content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "pointsman")
    put(tmp_path / "hub" / "models--owner--tiny-GGUF" / "snapshots" / "abc" / "tiny.gguf", content[:-1] + b"x")
    good = put(places.store / "tiny.gguf", content)
    assert (await resolve(spec, places)).path == good
    assert "has SHA-256" in caplog.text
    put(places.store / "tiny.gguf", content[:-1])
    with pytest.raises(ModelFileError, match="could not get tiny"):
        await resolve(spec, places)
    assert f"has {len(content) - 1:,} bytes instead of {len(content):,}" in caplog.text


async def test_one_line_when_there_is_no_way(places: ModelPlaces, spec: ModelSpec) -> None:
    with pytest.raises(ModelFileError) as caught:
        await resolve(spec, places)
    expected = "could not get tiny (downloads are switched off): put tiny.gguf anywhere and pass --model PATH"
    assert str(caught.value) == expected


async def test_a_store_that_cannot_be_written(tmp_path: Path, places: ModelPlaces, known: KnownModel) -> None:
    put(tmp_path / "file", b"")
    blocked = dataclasses.replace(places, store=tmp_path / "file" / "store", use_package=True)
    with pytest.raises(ModelFileError, match="can't be written"):
        await resolve(ModelSpec(None, None, known), blocked)
