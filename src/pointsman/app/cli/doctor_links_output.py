"""What `pointsman doctor links` found, as a matrix for people, a document for programs and a file for front ends."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pointsman.edge.configuration.links_file import VERSION, LinksFile, SavedLink, SavedSample
from pointsman.edge.node.survey import Direction, Pair, Survey
from pointsman.edge.node.verdicts import Finding, nominal_gbit_per_s
from pointsman.edge.transfer.probe.messages import Sample

_PIPE_WIDTH = 200
_MOST_COLUMNS = 12
"""Machines beyond which a list is shown instead of a matrix."""


class LinkFound(msgspec.Struct):
    """One direction."""

    source: str
    target: str
    transport: str
    round_trip_ms: float
    gb_per_s: float
    """Decimal, of the largest transfers."""
    nominal_gbit_per_s: float | None
    interface: str | None
    """Of the source."""
    samples: list[Sample]
    notes: list[str]


class FindingShown(msgspec.Struct):
    """Something that is wrong."""

    text: str
    links: list[tuple[str, str]]


class LinksFound(msgspec.Struct):
    """`pointsman doctor links --json`."""

    nodes: dict[str, str]
    """Names and URLs."""
    links: list[LinkFound]
    findings: list[FindingShown]
    unreachable: dict[str, str]
    failures: list[str]


def links_document(found: Survey, findings: Sequence[Finding]) -> LinksFound:
    """All of it."""
    return LinksFound(
        {member.name: member.url for member in found.members},
        [_shown(direction) for direction in found.directions()],
        [FindingShown(finding.text, list(finding.links)) for finding in findings],
        dict(found.unreachable),
        [_failure(pair) for pair in found.failures],
    )


def links_file(found: Survey, measured_at: str) -> LinksFile:
    """What a front end can learn from."""
    links = tuple(
        SavedLink(
            source=direction.source,
            target=direction.target,
            transport=direction.probe.transport,
            round_trip_ms=direction.probe.round_trip_ms,
            samples=tuple(SavedSample(size_bytes=s.size_bytes, took_ms=s.took_ms) for s in direction.samples),
        )
        for direction in found.directions()
    )
    return LinksFile(version=VERSION, measured_at=measured_at, links=links)


def pair_line(pair: Pair) -> str:
    """While it runs."""
    if pair.probe is None:
        return f"{pair.one} – {pair.other}: {pair.error}"
    rates = [
        f"{_rate(samples[-1])} {way}" for samples, way in ((pair.probe.forth, "→"), (pair.probe.back, "←")) if samples
    ]
    return (
        f"{pair.one} – {pair.other}: {', '.join(rates) or 'nothing'}, {_time(pair.probe.round_trip_ms)} there and back"
    )


def print_links(found: Survey, findings: Sequence[Finding]) -> None:
    """To stdout."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    directions = list(found.directions())
    if directions:
        console.print("GB/s of large transfers and time there and back, from the row's machine to the column's")
        names = [member.name for member in found.members if member.name not in found.unreachable]
        console.print(_matrix(names, directions) if len(names) <= _MOST_COLUMNS else _list(directions))
    for note in dict.fromkeys(_notes(directions)):
        console.print(escape(note))
    for reason in found.unreachable.values():
        console.print(f"[red]{escape(reason)}[/red]")
    for pair in found.failures:
        console.print(f"[red]{escape(_failure(pair))}[/red]")
    for finding in findings:
        console.print(f"[red]{escape(finding.text)}[/red]")
    pairs = len(found.members) * (len(found.members) - 1) // 2
    if len(found.pairs) == pairs > 0 and not (findings or found.failures or found.unreachable):
        console.print("[green]nothing is wrong with these links[/green]")


def _matrix(names: Sequence[str], directions: Sequence[Direction]) -> Table:
    table = Table("from \\ to", *names)
    cells = {(direction.source, direction.target): _cell(direction) for direction in directions}
    for source in names:
        table.add_row(source, *("" if source == target else cells.get((source, target), "–") for target in names))
    return table


def _list(directions: Sequence[Direction]) -> Table:
    table = Table("from", "to", "GB/s, there and back")
    for direction in directions:
        table.add_row(direction.source, direction.target, _cell(direction))
    return table


def _cell(direction: Direction) -> str:
    how = "" if direction.probe.transport == "tcp" else f" {direction.probe.transport}"
    return f"{_rate(direction.largest)} {_time(direction.probe.round_trip_ms)}{how}"


def _notes(directions: Sequence[Direction]) -> list[str]:
    return [
        f"{direction.source} – {direction.target}: {note}"
        for direction in directions
        if not direction.is_back
        for note in direction.probe.notes
    ]


def _shown(direction: Direction) -> LinkFound:
    end = direction.probe.peer_interface if direction.is_back else direction.probe.interface
    return LinkFound(
        direction.source,
        direction.target,
        direction.probe.transport,
        direction.probe.round_trip_ms,
        direction.largest.gb_per_s,
        nominal_gbit_per_s(direction),
        None if end is None else end.name,
        list(direction.samples),
        list(direction.probe.notes),
    )


def _failure(pair: Pair) -> str:
    broke = "" if pair.probe is None else pair.probe.broke
    return f"{pair.one} – {pair.other}: {pair.error or broke}"


def _rate(sample: Sample) -> str:
    return f"{sample.gb_per_s:.3g} GB/s"


def _time(ms: float) -> str:
    return f"{ms:.3g} ms" if ms >= 1 else f"{1000 * ms:.3g} µs"
