"""What `pointsman place --json` writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from pointsman.app.placements.in_order import Planned
from pointsman.core.placement.plan import Change, Gap, Missing, Optimal, Placement, Unplaced
from pointsman.core.placement.state import ClusterState


class ClusterDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What the cluster had before."""

    nodes: int
    nodes_up: int
    gpus: int
    gpus_free: float
    levels: list[str]


class PodDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Where a pod goes; the domain of each level that its node is in."""

    role: str
    replica: int
    pod: int
    node: str
    devices: list[int]
    domains: dict[str, str]


class MissingDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What of a role does not fit."""

    role: str
    fits_replicas: int
    wanted_replicas: int
    lacks_gpus: float
    lacks_cpus: float
    lacks_memory_bytes: int


class TightestDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The domain that comes nearest."""

    level: str
    domain: str
    missing: list[MissingDocument]


class UnfitDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that won't do for a role."""

    role: str
    why: str
    nodes: int


class ChangeDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was tried and makes it fit."""

    kind: str
    text: str
    replicas: dict[str, int]
    constraint: str
    level: str | None
    gang: str


class PlacedDocument(msgspec.Struct, frozen=True, kw_only=True, tag="placed", tag_field="outcome"):
    """A deployment with a place. `statement`: optimal, gap or budget_spent; `gap_cost` with gap."""

    name: str
    model: str | None
    priority: int
    statement: str
    gap_cost: int | None
    cost: int
    bound: int
    elapsed_s: float
    replicas: dict[str, int]
    held_back_by_queue: bool
    """Fewer elastic replicas than it asks for, because its queue may have no more."""
    elastic_cut_short: bool
    """Time ran out before it was known whether more elastic replicas fit."""
    spread: dict[str, int]
    pods: list[PodDocument]


class UnplacedDocument(msgspec.Struct, frozen=True, kw_only=True, tag="unplaced", tag_field="outcome"):
    """A deployment without a place, and why."""

    name: str
    model: str | None
    priority: int
    reason: str
    text: str
    constraint: str
    proved: bool
    elapsed_s: float
    tightest: TightestDocument | None
    missing: list[MissingDocument]
    unfit: list[UnfitDocument]
    changes: list[ChangeDocument]


class PlaceDocument(msgspec.Struct, frozen=True, kw_only=True):
    """All of it, deployments in the order they were tried."""

    cluster: ClusterDocument
    deployments: list[PlacedDocument | UnplacedDocument]


def document_of(planned: Planned, models: Mapping[str, str | None]) -> PlaceDocument:
    """Of a plan; models by name of the deployment."""
    state = planned.before
    cluster = ClusterDocument(
        nodes=len(state.nodes),
        nodes_up=int(state.up.sum()),
        gpus=sum(node.gpus for node in state.nodes),
        gpus_free=int(state.gpu_free_milli[state.up].sum()) / 1000,
        levels=list(state.topology.names),
    )
    found: list[PlacedDocument | UnplacedDocument] = []
    for answer in planned.answers:
        model = models.get(answer.gang.name)
        found.append(_placed(planned, answer, model) if isinstance(answer, Placement) else _unplaced(answer, model))
    return PlaceDocument(cluster=cluster, deployments=found)


def domains_of_node(state: ClusterState, node: str) -> dict[str, str]:
    """By level, without `node`: the domain that a node is in; levels where it is in none are left out."""
    row, domains = state.row(node), state.domains
    found = {}
    for position, level in enumerate(state.topology.names):
        number = int(domains.of_node[position, row])
        if position and domains.is_real[position][number]:
            found[level] = domains.names[position][number]
    return found


def _placed(planned: Planned, placement: Placement, model: str | None) -> PlacedDocument:
    state = planned.before
    statement = placement.statement
    word = "optimal" if isinstance(statement, Optimal) else "gap" if isinstance(statement, Gap) else "budget_spent"
    domains = {node: domains_of_node(state, node) for node in placement.nodes}
    return PlacedDocument(
        name=placement.gang.name,
        model=model,
        priority=placement.gang.priority,
        statement=word,
        gap_cost=statement.cost if isinstance(statement, Gap) else None,
        cost=placement.cost,
        bound=placement.bound,
        elapsed_s=round(placement.elapsed_s, 4),
        replicas=dict(placement.replicas),
        held_back_by_queue=placement.gang.name in planned.held_back,
        elastic_cut_short=placement.growth_cut_short,
        spread={each.level: each.domains for each in placement.spread},
        pods=[
            PodDocument(
                role=pod.role,
                replica=pod.replica,
                pod=pod.pod,
                node=pod.node,
                devices=list(pod.devices),
                domains=domains[pod.node],
            )
            for pod in placement.pods
        ],
    )


def _unplaced(answer: Unplaced, model: str | None) -> UnplacedDocument:
    tightest = answer.tightest
    return UnplacedDocument(
        name=answer.gang.name,
        model=model,
        priority=answer.gang.priority,
        reason=answer.reason.value,
        text=answer.text,
        constraint=answer.constraint,
        proved=answer.proved,
        elapsed_s=round(answer.elapsed_s, 4),
        tightest=None
        if tightest is None
        else TightestDocument(level=tightest.level, domain=tightest.domain, missing=_missing(tightest.missing)),
        missing=_missing(answer.missing),
        unfit=[UnfitDocument(role=role, why=why, nodes=count) for role, why, count in answer.unfit],
        changes=[_change(change) for change in answer.changes],
    )


def _missing(missing: Iterable[Missing]) -> list[MissingDocument]:
    return [
        MissingDocument(
            role=each.role,
            fits_replicas=each.fits_replicas,
            wanted_replicas=each.wanted_replicas,
            lacks_gpus=each.lacks.gpus,
            lacks_cpus=each.lacks.cpu_milli / 1000,
            lacks_memory_bytes=each.lacks.memory_bytes,
        )
        for each in missing
    ]


def _change(change: Change) -> ChangeDocument:
    return ChangeDocument(
        kind=change.kind,
        text=change.text,
        replicas=dict(change.replicas),
        constraint=change.constraint,
        level=change.level,
        gang=change.gang,
    )
