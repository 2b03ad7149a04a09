"""What `pointsman status` says of the places where engines are found: only what somebody has to know."""

from __future__ import annotations

from collections.abc import Iterator

from pointsman.edge.serving.workers.report import DiscoveryReport

_MOST = 5
"""Ignored records of a place."""


def discovery_lines(report: DiscoveryReport | None) -> Iterator[str]:
    """A line for a place that can't be read, engines that it does not name any more, and records that are not used."""
    if report is None:
        return
    for place in report.places:
        name = f"engines of {place.origin} {place.where}"
        if place.state != "connected":
            yield f"{name}: {place.state} for {place.for_s:.0f} s, {place.engines} stay as they were: {place.reason}"
        if place.kept:
            yield f"{name}: {place.kept} of {place.engines} are not named there any more and kept for a while"
        for ignored in place.ignored[:_MOST]:
            yield f"{place.origin}: ignored: {ignored.reason}"
        if len(place.ignored) > _MOST:
            yield f"{place.origin}: ignored: {len(place.ignored) - _MOST} more; `GET /v1/workers` names them"
    for refused in report.refused:
        yield f"{refused.name} ({refused.url}) of {refused.origin}: not used: {refused.reason}"
