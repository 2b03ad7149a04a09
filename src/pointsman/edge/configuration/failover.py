"""Section `failover`: what happens to a request whose engine fails it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from pointsman.edge.configuration.conflict import KeyConflictError
from pointsman.edge.configuration.duration import Duration
from pointsman.edge.configuration.share import Share

FAILOVER_ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
MOST_RETRIES = 10


class RouteFailover(msgspec.Struct, frozen=True, kw_only=True):
    """What is otherwise for one route."""

    retries: Annotated[int | None, Meta(description="As `failover.retries`; absent: as there.")] = None
    migration: Annotated[bool | None, Meta(description="As `failover.migration`; absent: as there.")] = None

    def __post_init__(self) -> None:
        if self.retries is not None and not 0 <= self.retries <= MOST_RETRIES:
            raise KeyConflictError("retries", f"expected 0 to {MOST_RETRIES}, got {self.retries}")


class Failover(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to a request whose engine fails it. Nothing is sent again that may still be computed."""

    retries: Annotated[
        int,
        Meta(
            ge=0,
            le=MOST_RETRIES,
            description="Times that a request is sent to another engine before its client got a byte; `0`: never.",
        ),
    ] = 2
    retry_budget: Annotated[
        Share,
        Meta(
            description="Retries beside requests, over all of them; some a second are always allowed unless it is 0%."
        ),
    ] = Share(0.2)
    migration: Annotated[
        bool,
        Meta(description="Streams go on at another engine when theirs fails or drains, from the tokens already sent."),
    ] = True
    migration_limit: Annotated[int, Meta(ge=0, le=20, description="Times that one stream may go on elsewhere.")] = 3
    migration_wait: Annotated[
        Duration, Meta(description="How long a stream waits for an engine that can go on with it.")
    ] = Duration(30)
    routes: Annotated[
        Mapping[str, RouteFailover],
        Meta(description="What is otherwise for one route: `{/v1/completions: {migration: false}}`."),
    ] = {}

    def __post_init__(self) -> None:
        for route in self.routes:
            if route not in FAILOVER_ROUTES:
                raise KeyConflictError(f"routes.{route}", f"no such route; there are {', '.join(FAILOVER_ROUTES)}")
