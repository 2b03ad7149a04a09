"""Section `metrics`: what is read from engines and offered at `/metrics`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """What is read from engines and offered at `/metrics`."""

    collect_queue_depth: Annotated[bool, Meta(description="Requests running and waiting at each engine.")] = True
    collect_kv_cache_miss: Annotated[
        bool, Meta(description="Tokens predicted to be cached against those that the engine reports.")
    ] = True
    collect_gpu_utilization: Annotated[bool, Meta(description="Utilization of each engine's GPUs.")] = False

    not_built: ClassVar[Mapping[str, str]] = {
        "export_interval": "pushing metrics (who collects them reads /metrics of the admin port at will)"
    }
    not_built_values: ClassVar[Mapping[str, Mapping[object, str]]] = {
        "collect_gpu_utilization": {True: "reading GPUs"},
    }
