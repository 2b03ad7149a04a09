"""Where models are looked for and kept, as the environment says."""

from __future__ import annotations

from collections.abc import Mapping

from pointsman.edge.engines.local.model_file import ModelPlaces
from pointsman.edge.prompts.hub_places import cache_folder, hub_caches, hub_url


def model_places(environ: Mapping[str, str]) -> ModelPlaces:
    """Honours HF_HUB_CACHE, HF_HOME, HF_ENDPOINT, HF_HUB_OFFLINE and XDG_CACHE_HOME as their owners define them."""
    return ModelPlaces(
        store=cache_folder(environ) / "pointsman" / "models",
        hub_caches=hub_caches(environ),
        hub_url=hub_url(environ),
    )
