"""Picture: racks, their nodes and what is on each GPU, before anyone draws it."""

from __future__ import annotations

import enum
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pointsman.core.placement.plan import Placement
from pointsman.core.placement.resources import WHOLE_GPU_MILLI
from pointsman.core.placement.state import ClusterState
from pointsman.core.placement.topology import NODE_LEVEL

MOST_NODES = 512
"""Of larger clusters only the racks that something was placed in are drawn."""
MOST_BESIDE = 16
"""Pods without a GPU that are drawn on one node."""
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWYZ"


class Use(enum.Enum):
    """What a GPU is used for, if not for one of the placements that are drawn."""

    FREE = "free"
    OTHERS = "of others"
    PARTLY = "partly of others"
    DOWN = "down or cordoned"


@dataclass(frozen=True, slots=True)
class Member:
    """A role of a deployment, as the legend has it."""

    gang: str
    role: str
    letter: str
    colour: int


@dataclass(frozen=True, slots=True)
class Cell:
    """One GPU. `member` is the position in the legend; None: nobody's that is drawn."""

    member: int | None
    use: Use = Use.FREE
    part: bool = False
    """Whether the member has only a part of it."""


@dataclass(frozen=True, slots=True)
class NodePicture:
    """One node: its GPUs, and members with pods there that have no GPU: one for each pod, `more` of them left out."""

    name: str
    cells: tuple[Cell, ...]
    beside: tuple[int, ...]
    more: int = 0


@dataclass(frozen=True, slots=True)
class Rack:
    """One domain of the level that is drawn."""

    name: str
    nodes: tuple[NodePicture, ...]


@dataclass(frozen=True)
class Picture:
    """All of it. `hidden`: racks and nodes that are not drawn."""

    level: str
    racks: tuple[Rack, ...]
    legend: tuple[Member, ...]
    hidden: tuple[int, int]


def picture_of(state: ClusterState, placements: Sequence[Placement]) -> Picture:
    """Of a cluster that holds these placements; a rack is a domain of level `rack`, or the nearest like it."""
    legend, number_of = _legend(placements)
    owners, beside = _owners(state, placements, number_of)
    level, position, of_node = _level(state)
    count = len(state.domains.names[position])
    touched = {state.row(pod.node) for placement in placements for pod in placement.pods}
    drawn = {int(of_node[row]) for row in touched} if len(state.nodes) > MOST_NODES else set(range(count))
    rows_of: dict[int, list[int]] = {}
    hidden_nodes = 0
    for row in range(len(state.nodes)):
        rack = int(of_node[row])
        if rack in drawn:
            rows_of.setdefault(rack, []).append(row)
        else:
            hidden_nodes += 1
    racks = tuple(
        Rack(state.domains.title(position, rack), tuple(_node(state, row, owners, beside) for row in rows))
        for rack, rows in rows_of.items()
    )
    return Picture(level, racks, legend, (count - len(racks), hidden_nodes))


def _legend(placements: Sequence[Placement]) -> tuple[tuple[Member, ...], dict[tuple[str, str], int]]:
    legend: list[Member] = []
    number_of: dict[tuple[str, str], int] = {}
    for placement in placements:
        for group in placement.gang.groups:
            taken = {member.letter for member in legend}
            wanted = [group.name[:1].upper(), *_LETTERS]
            letter = next((each for each in wanted if each in _LETTERS and each not in taken), "?")
            number_of[placement.gang.name, group.name] = len(legend)
            legend.append(Member(placement.gang.name, group.name, letter, len(legend)))
    return tuple(legend), number_of


def _owners(
    state: ClusterState, placements: Sequence[Placement], number_of: dict[tuple[str, str], int]
) -> tuple[dict[tuple[int, int], tuple[int, bool]], dict[int, Counter[int]]]:
    """By node and device who has it and whether in part; by node who is there without a GPU."""
    owners: dict[tuple[int, int], tuple[int, bool]] = {}
    beside: dict[int, Counter[int]] = {}
    for placement in placements:
        part_of = {group.name: bool(group.requests.device_share_milli) for group in placement.gang.groups}
        for pod in placement.pods:
            row, member = state.row(pod.node), number_of[placement.gang.name, pod.role]
            for device in pod.devices:
                owners[row, device] = member, part_of[pod.role]
            if not pod.devices:
                beside.setdefault(row, Counter())[member] += 1
    return owners, beside


def _level(state: ClusterState) -> tuple[str, int, Sequence[int]]:
    """The level that is drawn, its position, and its domain of each node."""
    names, domains = state.topology.names, state.domains
    if "rack" in names:
        position = names.index("rack")
    else:
        several = (at for at in range(1, len(names)) if len(domains.names[at]) * 2 <= len(state.nodes))
        position = next(several, len(names))
    level = names[position] if position < len(names) else "cluster"
    assert level != NODE_LEVEL
    return level, position, domains.of_node[position].tolist()


def _node(
    state: ClusterState,
    row: int,
    owners: dict[tuple[int, int], tuple[int, bool]],
    beside: dict[int, Counter[int]],
) -> NodePicture:
    node = state.nodes[row]
    cells = []
    for device in range(node.gpus):
        owner = owners.get((row, device))
        free = int(state.device_free_milli[row, device])
        if owner is not None:
            cells.append(Cell(owner[0], part=owner[1]))
        elif free < WHOLE_GPU_MILLI:
            cells.append(Cell(None, Use.PARTLY if free > 0 else Use.OTHERS))
        else:
            cells.append(Cell(None, Use.FREE if state.up[row] else Use.DOWN))
    without = tuple(itertools.islice(beside.get(row, Counter()).elements(), MOST_BESIDE))
    more = sum(beside.get(row, Counter()).values()) - len(without)
    return NodePicture(node.name, tuple(cells), without, more)
