"""Verdicts: which measured links are far slower than they should be, why that may be, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from pointsman.edge.node.survey import Direction
from pointsman.edge.transfer.negotiation import TCP
from pointsman.edge.transfer.probe.interface import Interface

_SHARE_OF_NOMINAL = 0.2
"""Below it a link is bad …"""
_MOST_ASKED_GBIT = 10.0
"""… unless it is faster than that: one TCP connection and one thread do not fill a card of 100 Gb/s and more."""
_SHARE_OF_SIBLINGS = 1 / 3
_SHARE_OF_BACK = 1 / 3
"""Of the other direction of the same link."""
_FEWEST_SIBLINGS = 3
_SHARE_OF_PORTS = 0.5
"""A port whose own word is below that of what the others say."""
_STEPS_GBIT = (0.01, 0.1, 1.0, 2.5, 5.0, 10.0, 25.0, 40.0, 50.0, 100.0)
"""Speeds that ports are negotiated at."""
_GOODPUT = (0.7, 1.0)
"""Of such a speed, what is left for the bytes themselves."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong."""

    text: str
    """What, how far, and what to do."""
    links: tuple[tuple[str, str], ...]
    """Sources and targets."""


def verdicts(directions: Sequence[Direction]) -> tuple[Finding, ...]:
    """All that is wrong with what was measured; each link is named once, by the most telling reason.

    What broke off is not judged: its largest transfer may be a small one.
    """
    directions = [direction for direction in directions if not direction.probe.broke]
    found = _ports(directions)
    found += _slow_machines(directions, _named(found))
    for judge in (_below_nominal, _below_siblings, _below_back):
        named = _named(found)
        rest = [d for d in directions if (d.source, d.target) not in named]
        found += [
            Finding(text, ((d.source, d.target),)) for d in rest if (text := judge(d, rest, directions)) is not None
        ]
    return tuple(found)


def _named(found: Sequence[Finding]) -> set[tuple[str, str]]:
    return {link for finding in found for link in finding.links}


def nominal_gbit_per_s(direction: Direction) -> float | None:
    """The slower of the two cards' own words; None: they say none, or it goes over no card."""
    if direction.probe.transport != TCP:
        return None
    said = [_card_speed(end) for end in (direction.probe.interface, direction.probe.peer_interface)]
    known = [speed for speed in said if speed is not None]
    return min(known, default=None)


def _card_speed(interface: Interface | None) -> float | None:
    return None if interface is None or interface.is_virtual else interface.gbit_per_s


def _ports(directions: Sequence[Direction]) -> list[Finding]:
    """Ports that say themselves that they are slower than those of the other machines."""
    speeds: dict[str, tuple[str, float]] = {}
    for direction in directions:
        own, peer = direction.probe.interface, direction.probe.peer_interface
        ends = (direction.target, direction.source) if direction.is_back else (direction.source, direction.target)
        for node, interface in zip(ends, (own, peer), strict=True):
            speed = _card_speed(interface)
            if direction.probe.transport == TCP and interface is not None and speed is not None:
                speeds[node] = (interface.name, speed)
    found = []
    for node, (name, speed) in sorted(speeds.items()):
        others = [other for peer, (_, other) in speeds.items() if peer != node]
        if len(others) < 2 or speed >= _SHARE_OF_PORTS * median(others):
            continue
        links = tuple((d.source, d.target) for d in directions if node in (d.source, d.target))
        text = (
            f"{node}: {name} runs at {speed:g} Gb/s, those of the other machines at {median(others):g}: negotiated "
            "down? Look at cable, switch port and auto-negotiation (`ethtool " + name + "`)"
        )
        found.append(Finding(text, links))
    return found


def _slow_machines(directions: Sequence[Direction], named: set[tuple[str, str]]) -> list[Finding]:
    """Machines whose best link is far slower than the best of the others."""
    touching: dict[str, list[Direction]] = {}
    for direction in directions:
        if direction.probe.transport == TCP and (direction.source, direction.target) not in named:
            touching.setdefault(direction.source, []).append(direction)
            touching.setdefault(direction.target, []).append(direction)
    best = {node: max(d.largest.gb_per_s for d in its) for node, its in touching.items()}
    found = []
    for node, its in sorted(touching.items()):
        others = [rate for other, rate in best.items() if other != node]
        if len(others) < 2 or best[node] >= _SHARE_OF_SIBLINGS * median(others):
            continue
        text = (
            f"{node}: all {len(its)} links from and to it are slow, {_rate(best[node])} at best where other machines "
            f"reach {_rate(median(others))}: its port or path; {_why(best[node])}"
        )
        found.append(Finding(text, tuple((d.source, d.target) for d in its)))
    return found


def _below_nominal(direction: Direction, rest: Sequence[Direction], all_: Sequence[Direction]) -> str | None:
    nominal = nominal_gbit_per_s(direction)
    rate = direction.largest.gb_per_s
    if nominal is None or rate * 8 >= min(_SHARE_OF_NOMINAL * nominal, _MOST_ASKED_GBIT):
        return None
    said = f"{_rate(rate)} over {_slower_end(direction)}, which says {nominal:g} Gb/s"
    return f"{_way(direction)}: {said}: {100 * rate * 8 / nominal:.2g} %; {_why(rate)}"


def _below_siblings(direction: Direction, rest: Sequence[Direction], all_: Sequence[Direction]) -> str | None:
    alike = [d for d in rest if d.probe.transport == direction.probe.transport and d is not direction]
    rate = direction.largest.gb_per_s
    if len(alike) < _FEWEST_SIBLINGS:
        return None
    usual = median(d.largest.gb_per_s for d in alike)
    if rate >= _SHARE_OF_SIBLINGS * usual:
        return None
    return f"{_way(direction)}: {_rate(rate)}, others have {_rate(usual)}: {100 * rate / usual:.2g} %; {_why(rate)}"


def _below_back(direction: Direction, rest: Sequence[Direction], all_: Sequence[Direction]) -> str | None:
    back = next((d for d in all_ if (d.source, d.target) == (direction.target, direction.source)), None)
    rate = direction.largest.gb_per_s
    if back is None or rate >= _SHARE_OF_BACK * back.largest.gb_per_s:
        return None
    return (
        f"{_way(direction)}: {_rate(rate)}, but {_rate(back.largest.gb_per_s)} the other way: duplex, a full or lossy "
        "path of one direction? Look at errors and drops of both ports (`ip -s link`)"
    )


def _why(gb_per_s: float) -> str:
    gbit = gb_per_s * 8
    step = next((s for s in _STEPS_GBIT if _GOODPUT[0] * s <= gbit <= _GOODPUT[1] * s), None)
    if step is not None:
        what = f"{step:g} GbE" if step >= 1 else f"{1000 * step:g} Mb/s"
        return (
            f"negotiated at {what}? Look at cable, switch port and shaping, and over which interface the address goes"
        )
    return "not all of it is the port's speed: look at errors and drops (`ip -s link`), MTU, load, windows on long ways"


def _slower_end(direction: Direction) -> str:
    ends = [end for end in (direction.probe.interface, direction.probe.peer_interface) if end is not None]
    return min((end for end in ends if _card_speed(end)), key=lambda end: _card_speed(end) or 0.0).name


def _way(direction: Direction) -> str:
    return f"{direction.source} → {direction.target}"


def _rate(gb_per_s: float) -> str:
    return f"{gb_per_s:.3g} GB/s"
