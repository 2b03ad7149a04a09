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
    collect_gpu_utilization: Annotated[
        bool,
        Meta(description="How busy each engine's GPUs are, where its `gpu_metrics_url` is given or it tells itself."),
    ] = True

    not_built: ClassVar[Mapping[str, str]] = {
        "export_interval": "pushing metrics (who collects them reads /metrics of the admin port at will)"
    }
