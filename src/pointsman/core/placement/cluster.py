"""Cluster: nodes with GPUs, CPU, memory, labels and taints, and the pods of others that hold some of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pointsman.core.model.errors import PlacementError
from pointsman.core.placement.resources import Resources

NO_SCHEDULE = "NoSchedule"
NO_EXECUTE = "NoExecute"
PREFER_NO_SCHEDULE = "PreferNoSchedule"
EFFECTS = (NO_SCHEDULE, PREFER_NO_SCHEDULE, NO_EXECUTE)


@dataclass(frozen=True, slots=True)
class Taint:
    """Keeps pods away that do not tolerate it; PreferNoSchedule only asks them to stay away."""

    key: str
    value: str = ""
    effect: str = NO_SCHEDULE

    def __post_init__(self) -> None:
        if self.effect not in EFFECTS:
            raise PlacementError(
                f"taint {self.key}: effect is {self.effect!r}; one of {', '.join(EFFECTS)} is expected"
            )

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


@dataclass(frozen=True, slots=True)
class Toleration:
    """What taints a pod does not mind. An empty key with `exists` is all of them, an empty effect every effect."""

    key: str = ""
    value: str = ""
    effect: str = ""
    exists: bool = False
    """True: any value of the key (operator Exists); False: this value (operator Equal)."""

    def tolerates(self, taint: Taint) -> bool:
        """Kubernetes' rule."""
        if self.effect and self.effect != taint.effect:
            return False
        if not self.key:
            return self.exists
        return self.key == taint.key and (self.exists or self.value == taint.value)


@dataclass(frozen=True, slots=True)
class Node:
    """One machine. `cpu_milli` and `memory_bytes` are what pods may have (allocatable)."""

    name: str
    gpus: int = 0
    gpu_kind: str | None = None
    cpu_milli: int = 0
    memory_bytes: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    cordoned: bool = False
    ready: bool = True

    def __post_init__(self) -> None:
        if not self.name:
            raise PlacementError("a node has no name")
        for name in ("gpus", "cpu_milli", "memory_bytes"):
            if getattr(self, name) < 0:
                raise PlacementError(f"node {self.name}: {name} is {getattr(self, name)}; 0 or more is expected")


@dataclass(frozen=True, slots=True)
class ForeignPod:
    """A pod that is not ours to move and holds resources of its node; those that ended are left out."""

    name: str
    namespace: str
    node: str
    requests: Resources
    devices: tuple[int, ...] = ()
    """Devices of the node that it has, where known; otherwise the fullest ones that fit are assumed."""

    def __post_init__(self) -> None:
        if not self.requests.fits_devices:
            raise PlacementError(
                f"pod {self.namespace}/{self.name}: {self.requests.gpu_milli} thousandths of a GPU; "
                "a part of one device or whole devices are expected"
            )


MOST_TOGETHER = 2**62
"""Thousandths of CPUs or bytes: sums of what nodes have are whole numbers of 64 bits."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes, each name once, and pods of others on them. Raises PlacementError otherwise, and for more of anything than
    can be counted."""

    nodes: tuple[Node, ...]
    pods: tuple[ForeignPod, ...] = ()

    def __post_init__(self) -> None:
        names: set[str] = set()
        for node in self.nodes:
            if node.name in names:
                raise PlacementError(f"node {node.name} is there twice; every node needs a name of its own")
            names.add(node.name)
        for pod in self.pods:
            if pod.node not in names:
                raise PlacementError(f"pod {pod.namespace}/{pod.name} is on node {pod.node}, which the cluster lacks")
        for name, all_of in (
            ("CPUs of all nodes", sum(node.cpu_milli for node in self.nodes)),
            ("memory of all nodes", sum(node.memory_bytes for node in self.nodes)),
            ("CPUs of all pods of others", sum(pod.requests.cpu_milli for pod in self.pods)),
            ("memory of all pods of others", sum(pod.requests.memory_bytes for pod in self.pods)),
        ):
            if all_of > MOST_TOGETHER:
                raise PlacementError(
                    f"{name} add up to {all_of:.2g} thousandths or bytes; at most {MOST_TOGETHER:.2g} is expected, so "
                    "an amount seems to be wrong"
                )
