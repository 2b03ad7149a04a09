"""FailoverSettings: what a request may be given when its engine fails it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pointsman.edge.configuration.failover import Failover


@dataclass(frozen=True, slots=True)
class RouteFailoverSettings:
    """Of one route."""

    retries: int = 2
    """Times that a request is sent to another engine before its client got a byte."""
    migration: bool = True
    """Its streams go on elsewhere."""


@dataclass(frozen=True, slots=True)
class FailoverSettings:
    """Of all routes."""

    retry_share: float = 0.2
    """Retries beside requests, 0 to 1."""
    migration_limit: int = 3
    """Times that one stream may go on elsewhere."""
    migration_wait_s: float = 30.0
    """How long it waits for an engine that can."""
    route: RouteFailoverSettings = RouteFailoverSettings()
    """Of routes that nothing is said of."""
    routes: Mapping[str, RouteFailoverSettings] = field(default_factory=dict)

    def of_route(self, route: str) -> RouteFailoverSettings:
        """What holds for one route."""
        return self.routes.get(route, self.route)

    @classmethod
    def of(cls, configured: Failover) -> FailoverSettings:
        """From the section `failover`."""
        routes = {
            route: RouteFailoverSettings(
                configured.retries if own.retries is None else own.retries,
                configured.migration if own.migration is None else own.migration,
            )
            for route, own in configured.routes.items()
        }
        return cls(
            retry_share=configured.retry_budget.part,
            migration_limit=configured.migration_limit,
            migration_wait_s=configured.migration_wait.s,
            route=RouteFailoverSettings(configured.retries, configured.migration),
            routes=routes,
        )
