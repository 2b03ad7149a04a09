"""Where models are looked for and kept, as the environment says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pointsman.edge.engines.local.model_file import ModelPlaces

_OFF = ("", "0", "false", "no", "off")


def model_places(environ: Mapping[str, str]) -> ModelPlaces:
    """Honours HF_HUB_CACHE, HF_HOME, HF_ENDPOINT, HF_HUB_OFFLINE and XDG_CACHE_HOME as their owners define them."""
    cache = Path(environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    hub_home = Path(environ["HF_HOME"]).expanduser() if environ.get("HF_HOME") else cache / "huggingface"
    hub_cache = Path(environ["HF_HUB_CACHE"]).expanduser() if environ.get("HF_HUB_CACHE") else hub_home / "hub"
    offline = environ.get("HF_HUB_OFFLINE", "").lower() not in _OFF
    endpoint = (environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    return ModelPlaces(
        store=cache / "pointsman" / "models",
        hub_caches=(hub_cache,),
        hub_url=None if offline else endpoint,
    )
