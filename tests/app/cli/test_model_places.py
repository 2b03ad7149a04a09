"""The environment's say in where models are."""

from __future__ import annotations

from pathlib import Path

import pytest

from pointsman.app.cli.model_places import model_places


def test_defaults() -> None:
    places = model_places({})
    assert places.hub_caches == (Path.home() / ".cache" / "huggingface" / "hub",)
    assert places.store == Path.home() / ".cache" / "pointsman" / "models"
    assert places.hub_url == "https://huggingface.co"
    assert places.use_package


@pytest.mark.parametrize(
    ("environ", "hub_cache"),
    [
        ({"HF_HOME": "/h"}, "/h/hub"),
        ({"HF_HUB_CACHE": "/c", "HF_HOME": "/h"}, "/c"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
        ({"HF_HOME": "", "XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
    ],
)
def test_caches(environ: dict[str, str], hub_cache: str) -> None:
    assert model_places(environ).hub_caches == (Path(hub_cache),)


@pytest.mark.parametrize(
    ("environ", "url"),
    [
        ({"HF_HUB_OFFLINE": "1"}, None),
        ({"HF_HUB_OFFLINE": "true"}, None),
        ({"HF_HUB_OFFLINE": "0"}, "https://huggingface.co"),
        ({"HF_ENDPOINT": "https://mirror.example/"}, "https://mirror.example"),
    ],
)
def test_hub(environ: dict[str, str], url: str | None) -> None:
    assert model_places(environ).hub_url == url
