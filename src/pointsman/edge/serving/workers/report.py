"""What people see of the places where engines are found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from pointsman.core.model.worker import Role
from pointsman.edge.cluster.discovery.discovery import DiscoveryStatus
from pointsman.edge.cluster.membership import CONFIGURATION, Membership
from pointsman.edge.cluster.status import EngineStatus
from pointsman.edge.serving.drains import Drains


class IgnoredReport(msgspec.Struct):
    """A record that is not used."""

    record: str
    reason: str


class PlaceReport(msgspec.Struct):
    """One place where engines are found."""

    origin: str
    where: str
    state: str
    """looking, connected or lost; while it is lost its engines stay as they were."""
    reason: str
    for_s: float
    engines: int
    kept: int
    """Of these: not named there any more, and kept for a while."""
    ignored: list[IgnoredReport]


class RefusedReport(msgspec.Struct):
    """An engine that is named and not used."""

    origin: str
    name: str
    url: str
    reason: str


class DiscoveryReport(msgspec.Struct):
    """All places, and what can't be used of them."""

    places: list[PlaceReport]
    refused: list[RefusedReport]


class EngineView(msgspec.Struct):
    """One engine in `GET /v1/workers`."""

    name: str
    url: str
    origin: str
    role: str
    state: str
    reason: str
    requests: int
    """Of this front end, that are there."""
    draining: str | None
    """Why it gets no new work; None: it does."""


class WorkersDocument(msgspec.Struct):
    """`GET /v1/workers`."""

    engines: list[EngineView]
    places: list[PlaceReport]
    refused: list[RefusedReport]


def discovery_report(statuses: Iterable[DiscoveryStatus], membership: Membership, now_ms: float) -> DiscoveryReport:
    """For the status document."""
    places = [
        PlaceReport(
            status.origin,
            status.where,
            str(status.state),
            status.reason,
            (now_ms - status.since_ms) / 1000,
            status.engines,
            status.kept,
            [IgnoredReport(one.record, one.reason) for one in status.ignored],
        )
        for status in statuses
    ]
    refused = [RefusedReport(one.origin, one.name, one.url, one.reason) for one in membership.refused]
    return DiscoveryReport(places, refused)


def workers_document(
    report: DiscoveryReport,
    engines: Iterable[EngineStatus],
    membership: Membership,
    drains: Drains,
    requests: Mapping[str, int],
    roles: Mapping[str, Role],
) -> WorkersDocument:
    """All engines by name, with how many requests are at each, and the role that it has now. Never with a key."""
    views = []
    for engine in sorted(engines, key=lambda one: one.name):
        member, drain = membership.member(engine.name), drains.of(engine.name)
        views.append(
            EngineView(
                engine.name,
                engine.url,
                CONFIGURATION if member is None else member.origin,
                str(roles.get(engine.name) or ("" if member is None else member.source.role)),
                str(engine.state),
                engine.reason,
                requests.get(engine.name, 0),
                None if drain is None else drain.reason,
            )
        )
    return WorkersDocument(views, report.places, report.refused)
