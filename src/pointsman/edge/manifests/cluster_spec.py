"""What a cluster file may say: levels of closeness, kinds of nodes, pods of others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from pointsman.edge.configuration.conflict import KeyConflictError
from pointsman.edge.manifests.deployment_spec import Effect
from pointsman.edge.manifests.quantity import Cpu, Gpus, Memory

MOST_NODES = 200_000


class LevelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One level of closeness."""

    name: Annotated[str, Meta(min_length=1, description="As deployments call it: rack.")]
    label: Annotated[str, Meta(min_length=1, description="Node label whose values are the domains.")]
    cost: Annotated[
        int | None,
        Meta(
            ge=0,
            le=10**9,
            description="What one domain more costs; absent: ten times the next nearer level, the nearest 1.",
        ),
    ] = None


class TaintSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Keeps pods away that do not tolerate it."""

    key: Annotated[str, Meta(min_length=1, description="Its key.")]
    value: Annotated[str, Meta(description="Its value.")] = ""
    effect: Annotated[Effect, Meta(description="What it does.")] = "NoSchedule"


class NodeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One node, or `count` equal ones."""

    name: Annotated[str, Meta(min_length=1, description="Of the node; of several, what stands before their number.")]
    count: Annotated[
        int | None, Meta(ge=1, le=100_000, description="So many equal ones: `name-1` and so on; absent: one.")
    ] = None
    gpus: Annotated[int, Meta(ge=0, le=1024, description="GPUs of a node.")] = 0
    gpu: Annotated[str | None, Meta(description="Their kind.")] = None
    cpu: Annotated[Cpu, Meta(description="CPUs for pods.")] = Cpu(0)
    memory: Annotated[Memory, Meta(description="Memory for pods.")] = Memory(0)
    labels: Annotated[Mapping[str, str], Meta(description="Labels of each.")] = {}
    domains: Annotated[
        Mapping[str, Annotated[int, Meta(ge=1)]],
        Meta(description="Level → nodes a domain: `{rack: 8}` labels the first 8 rack-1, the next rack-2."),
    ] = {}
    taints: Annotated[tuple[TaintSpec, ...], Meta(description="Taints of each.")] = ()
    cordoned: Annotated[bool, Meta(description="Takes no new pods.")] = False
    ready: Annotated[bool, Meta(description="False: it is down.")] = True

    def names(self) -> Iterator[str]:
        """Of its nodes."""
        if self.count is None:
            yield self.name
            return
        width = len(str(self.count))
        for number in range(1, self.count + 1):
            yield f"{self.name}-{number:0{width}}"


class PodSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A pod of others that holds part of a node."""

    node: Annotated[str, Meta(min_length=1, description="Where it is.")]
    name: Annotated[str, Meta(description="For messages.")] = "pod"
    namespace: Annotated[str, Meta(description="For messages.")] = "default"
    gpus: Annotated[Gpus, Meta(description="Whole GPUs, or a part of one below 1.")] = Gpus(0)
    cpu: Annotated[Cpu, Meta(description="CPUs.")] = Cpu(0)
    memory: Annotated[Memory, Meta(description="Memory.")] = Memory(0)
    devices: Annotated[
        tuple[Annotated[int, Meta(ge=0)], ...],
        Meta(description="Which GPUs of the node, from 0; absent: the fullest that fit."),
    ] = ()


class ClusterSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster."""

    topology: Annotated[tuple[LevelSpec, ...], Meta(description="Levels of closeness, near to far.")] = ()
    nodes: Annotated[tuple[NodeSpec, ...], Meta(min_length=1, description="The nodes.")]
    pods: Annotated[tuple[PodSpec, ...], Meta(description="Pods of others.")] = ()

    def __post_init__(self) -> None:
        nodes = sum(node.count or 1 for node in self.nodes)
        if nodes > MOST_NODES:
            raise KeyConflictError("nodes", f"{nodes:,} nodes together; at most {MOST_NODES:,} are expected")
        levels = [level.name for level in self.topology]
        gpus_of: dict[str, int] = {}
        for number, node in enumerate(self.nodes):
            for level in node.domains:
                if level not in levels:
                    known = ", ".join(levels) or "none; add topology"
                    raise KeyConflictError(
                        f"nodes[{number}].domains.{level}", f"there is no such level; known here: {known}"
                    )
            for name in node.names():
                if name in gpus_of:
                    raise KeyConflictError(f"nodes[{number}].name", f"there is a node {name} already; rename one")
                gpus_of[name] = node.gpus
        for number, pod in enumerate(self.pods):
            if pod.node not in gpus_of:
                raise KeyConflictError(f"pods[{number}].node", f"there is no node {pod.node}")
            beyond = next((device for device in pod.devices if device >= gpus_of[pod.node]), None)
            if beyond is not None:
                raise KeyConflictError(
                    f"pods[{number}].devices", f"node {pod.node} has {gpus_of[pod.node]} GPUs, none has number {beyond}"
                )
