"""Section `tenants`: how much each tenant may ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from pointsman.core.limits.limits import Limits
from pointsman.edge.configuration.duration import Duration

MOST_A_MINUTE = 10**12


class LimitSet(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one party; what is absent is not limited."""

    requests_per_minute: Annotated[
        int | None, Meta(ge=1, le=MOST_A_MINUTE, description="Requests that begin, a minute.")
    ] = None
    tokens_per_minute: Annotated[
        int | None,
        Meta(ge=1, le=MOST_A_MINUTE, description="Tokens of prompts and answers, a minute, as engines report them."),
    ] = None
    concurrency: Annotated[int | None, Meta(ge=1, le=10**6, description="Requests at the same time.")] = None
    burst: Annotated[
        Duration,
        Meta(description="What is not used is saved up for so long; `60s`: a minute's worth may come at once."),
    ] = Duration(60)

    def limits(self) -> Limits:
        """As the core counts."""
        return Limits(self.requests_per_minute, self.tokens_per_minute, self.concurrency, self.burst.s)


class TenantLimits(LimitSet, frozen=True, kw_only=True):
    """Limits of one tenant, over all its keys and all replicas."""

    models: Annotated[
        Mapping[str, LimitSet], Meta(description="Limits of single models, beside those of the tenant; by model name.")
    ] = {}


class Tenants(msgspec.Struct, frozen=True, kw_only=True):
    """How much each tenant may ask for."""

    default: Annotated[
        TenantLimits, Meta(description="For each tenant that is not in `named`, and for requests of none.")
    ] = TenantLimits()
    named: Annotated[
        Mapping[str, TenantLimits], Meta(description="By tenant; nothing of `default` holds for these.")
    ] = {}
