"""Where the hub's files are, as the environment says: HF_HUB_CACHE, HF_HOME, HF_ENDPOINT, HF_HUB_OFFLINE, HF_TOKEN."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pointsman.edge.prompts.tokenizer_files import TokenizerPlaces

_OFF = ("", "0", "false", "no", "off")


def cache_folder(environ: Mapping[str, str]) -> Path:
    """The user's folder for caches."""
    return Path(environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()


def hub_caches(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Caches in the hub's layout."""
    home = Path(environ["HF_HOME"]).expanduser() if environ.get("HF_HOME") else cache_folder(environ) / "huggingface"
    return (Path(environ["HF_HUB_CACHE"]).expanduser() if environ.get("HF_HUB_CACHE") else home / "hub",)


def hub_url(environ: Mapping[str, str]) -> str | None:
    """The hub; None when it is switched off."""
    offline = environ.get("HF_HUB_OFFLINE", "").lower() not in _OFF
    return None if offline else (environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def tokenizer_places(environ: Mapping[str, str]) -> TokenizerPlaces:
    """Where tokenizers are looked for and kept."""
    return TokenizerPlaces(
        store=cache_folder(environ) / "pointsman" / "tokenizers",
        hub_caches=hub_caches(environ),
        hub_url=hub_url(environ),
        hub_token=environ.get("HF_TOKEN") or None,
    )
