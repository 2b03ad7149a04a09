"""Files of queues: who is owed how much of a cluster, and who may have how much."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from pointsman.core.model.errors import ConfigError, PlacementError
from pointsman.core.placement.queues.amounts import Allowance
from pointsman.core.placement.queues.tree import LEAST_WEIGHT, MOST_DEPTH, MOST_WEIGHT, ROOT, Queue, QueueTree
from pointsman.edge.configuration.build import build
from pointsman.edge.configuration.conflict import KeyConflictError
from pointsman.edge.configuration.duration import Duration
from pointsman.edge.configuration.nodes import MappingNode, parse_documents
from pointsman.edge.manifests.manifest_text import read_manifest
from pointsman.edge.manifests.quantity import Cpu, Memory

_MOST_BYTES = 16 * 2**20


class AllowanceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Amounts; what is absent has no bound."""

    gpus: Annotated[int | None, Meta(ge=0, le=10**9, description="GPUs.")] = None
    cpu: Annotated[Cpu | None, Meta(description="CPUs.")] = None
    memory: Annotated[Memory | None, Meta(description="Memory.")] = None


class QueueSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One queue."""

    name: Annotated[str, Meta(min_length=1, description="As deployments call it.")]
    parent: Annotated[
        str | None, Meta(description="Queue that it is part of; deployments go to queues without parts.")
    ] = None
    quota: Annotated[AllowanceSpec, Meta(description="What it is owed: others give it back when it is asked for.")] = (
        AllowanceSpec()
    )
    limit: Annotated[AllowanceSpec, Meta(description="What it may have at most.")] = AllowanceSpec()
    over_quota_weight: Annotated[
        float,
        Meta(
            ge=0,
            le=MOST_WEIGHT,
            description="Its part of what nobody is owed, beside its siblings'; 0: nothing, else 0.001 or more.",
        ),
    ] = 1.0
    priority: Annotated[
        int,
        Meta(
            ge=-(2**31),
            le=2**31,
            description="What nobody is owed goes to siblings of the highest priority first.",
        ),
    ] = 0
    preempt_min_runtime: Annotated[
        Duration | None, Meta(description="Its gangs are left alone for so long by others of the same queue.")
    ] = None
    reclaim_min_runtime: Annotated[
        Duration | None, Meta(description="Its gangs are left alone for so long by other queues.")
    ] = None

    def __post_init__(self) -> None:
        if not (self.over_quota_weight == 0 or LEAST_WEIGHT <= self.over_quota_weight <= MOST_WEIGHT):
            raise KeyConflictError(
                "over_quota_weight", f"expected 0, or {LEAST_WEIGHT} to {MOST_WEIGHT}, not {self.over_quota_weight}"
            )


class QueuesSpec(msgspec.Struct, frozen=True, kw_only=True):
    """All queues of a cluster."""

    queues: Annotated[tuple[QueueSpec, ...], Meta(min_length=1, description="The queues, in any order.")]

    def __post_init__(self) -> None:
        parent_of: dict[str, str] = {}
        for number, queue in enumerate(self.queues):
            if queue.name in parent_of:
                raise KeyConflictError(f"queues[{number}].name", f"there is a queue {queue.name} already; rename one")
            parent_of[queue.name] = queue.parent or ROOT
        for number, queue in enumerate(self.queues):
            if queue.parent and queue.parent not in parent_of:
                raise KeyConflictError(f"queues[{number}].parent", f"there is no queue {queue.parent!r}; add it")
        for number, queue in enumerate(self.queues):
            up, above = parent_of[queue.name], {queue.name}
            while up != ROOT and up not in above and len(above) <= MOST_DEPTH:
                above.add(up)
                up = parent_of[up]
            if up != ROOT:
                raise KeyConflictError(
                    f"queues[{number}].parent",
                    f"its parents go in a circle ({up} is one of them twice); leave one out"
                    if up in above
                    else f"there are more than {MOST_DEPTH} queues above it; make the tree flatter",
                )


def read_queues(path: Path) -> QueueTree:
    """The tree of queues of a file. Raises ConfigError that names file, line and key."""
    return queues_of(*read_manifest(path, "a list of queues", _MOST_BYTES))


def queues_of(text: str, source: str) -> QueueTree:
    """The same of a text; `source` names it in messages."""
    documents = parse_documents(text, source)
    if len(documents) != 1 or not isinstance(documents[0], MappingNode):
        raise ConfigError(f"{source}: expected one list of queues, under the key queues")
    spec = build(documents[0], QueuesSpec)
    try:
        return QueueTree(tuple(_queue(each) for each in spec.queues))
    except PlacementError as error:
        raise ConfigError(f"{source}: {error}") from None


def _queue(spec: QueueSpec) -> Queue:
    return Queue(
        spec.name,
        spec.parent or ROOT,
        _allowance(spec.quota),
        _allowance(spec.limit),
        spec.over_quota_weight,
        spec.priority,
        spec.preempt_min_runtime.s if spec.preempt_min_runtime else 0.0,
        spec.reclaim_min_runtime.s if spec.reclaim_min_runtime else 0.0,
    )


def _allowance(spec: AllowanceSpec) -> Allowance:
    return Allowance(
        None if spec.gpus is None else 1000 * spec.gpus,
        None if spec.cpu is None else spec.cpu.milli,
        None if spec.memory is None else spec.memory.bytes,
    )
