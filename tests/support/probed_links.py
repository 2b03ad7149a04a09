"""Measured links that nobody measured."""

from __future__ import annotations

from collections.abc import Mapping

from pointsman.edge.node.survey import Direction, Member, Pair, Survey
from pointsman.edge.transfer.probe.interface import Interface
from pointsman.edge.transfer.probe.messages import LinkProbe, Sample

SIZE = 100_000_000


def sample(gb_per_s: float) -> tuple[Sample, ...]:
    return (Sample(SIZE, SIZE / gb_per_s / 1e6, 3),)


def probe(
    forth: float,
    back: float | None = None,
    *,
    ports: tuple[float | None, float | None] = (None, None),
    transport: str = "tcp",
    is_virtual: bool = False,
) -> LinkProbe:
    """Rates in GB/s; `ports`: Gb/s of the interfaces, by their own word."""
    own, peer = (Interface("eth1", speed, is_virtual) for speed in ports)
    return LinkProbe(transport, 0.1, sample(forth), sample(forth if back is None else back), own, peer)


def surveyed(probes: Mapping[tuple[str, str], LinkProbe | str], unreachable: Mapping[str, str] | None = None) -> Survey:
    """Of pairs; a text is why there is no probe."""
    names = dict.fromkeys(name for pair in probes for name in pair) | dict.fromkeys(unreachable or {})
    pairs = tuple(
        Pair(*pair, error=found) if isinstance(found, str) else Pair(*pair, found) for pair, found in probes.items()
    )
    members = tuple(Member(name, f"http://{name}:8090") for name in names)
    return Survey(members, dict(unreachable or {}), pairs)


def directions(probes: Mapping[tuple[str, str], LinkProbe | str]) -> tuple[Direction, ...]:
    return tuple(surveyed(probes).directions())
