"""Section `control-plane.health`: what speaks against an engine, and for how long it is then left out."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from pointsman.edge.configuration.conflict import KeyConflictError
from pointsman.edge.configuration.duration import Duration
from pointsman.edge.configuration.share import Share


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """What speaks against an engine, and for how long it is then left out."""

    canary_idle: Annotated[
        Duration | None,
        Meta(
            description="Without any token for so long an idle vLLM, SGLang or TensorRT-LLM gets a canary; "
            "`none`: only engines in doubt do."
        ),
    ] = Duration(60)
    canary_limit: Annotated[Duration | None, Meta(description="What a canary may take; absent: two heartbeats.")] = None
    outliers: Annotated[
        bool, Meta(description="Leave out engines whose tokens stall or crawl beside those of their like.")
    ] = True
    most_out: Annotated[
        Share,
        Meta(
            description="Of a model's usable engines that may be left out at once for failures, stalls and canaries; "
            "one always stays."
        ),
    ] = Share(0.5)
    failures: Annotated[int, Meta(ge=1, description="Failures in a row after which an engine is left out.")] = 5
    failure_share: Annotated[
        Share, Meta(description="Failed requests of the last minute that are too many, once there were ten.")
    ] = Share(0.5)
    cool_off: Annotated[
        Duration, Meta(description="How long an engine is left out before it is tried again; doubles each time.")
    ] = Duration(10)
    most_cool_off: Annotated[Duration, Meta(description="The longest that it gets.")] = Duration(300)

    def __post_init__(self) -> None:
        if self.most_cool_off < self.cool_off:
            raise KeyConflictError(
                "most_cool_off", f"{self.most_cool_off} is shorter than cool_off, {self.cool_off}; raise it"
            )
        if self.failure_share.part == 0:
            raise KeyConflictError("failure_share", "0% would leave out every engine; use a share above it, up to 100%")
