"""Part `routing.guards`: limits beyond which a worker gets no request."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from pointsman.core.model import guards as core
from pointsman.edge.configuration.share import Share


class Guards(msgspec.Struct, frozen=True, kw_only=True):
    """Limits beyond which an engine gets no request; all are off. One that would leave no engine is lifted."""

    gpu_utilization_threshold: Annotated[
        float | None,
        Meta(
            ge=0.01,
            le=1,
            description="Skip engines whose GPUs are busier, as `gpu_metrics_url` or the engine tells; 0.8 is usual. "
            "Engines that only decode are never skipped: they look busy at any load.",
        ),
    ] = None
    kv_headroom: Annotated[
        Share | None,
        Meta(description="Skip engines whose free KV cache, after the prompt, would be a smaller part of the whole."),
    ] = None
    max_topology_distance: Annotated[
        int | None,
        Meta(
            ge=0,
            description="Skip engines farther away: 0 lets only those in whose place is the front end's at all of "
            "`control-plane.topology_levels`, 1 also those that differ at the first level, and so on.",
        ),
    ] = None

    def of(self) -> core.Guards:
        """For the ledger."""
        headroom = None if self.kv_headroom is None else self.kv_headroom.part
        return core.Guards(self.gpu_utilization_threshold, headroom, self.max_topology_distance)
