"""`kubectl get nodes,pods -o json`, as it is, to a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from pointsman.core.placement.cluster import EFFECTS, Cluster, ForeignPod, Node, Taint
from pointsman.core.placement.resources import Resources
from pointsman.edge.manifests.cluster_file import LoadedCluster
from pointsman.edge.manifests.kubernetes_documents import Item
from pointsman.edge.manifests.kubernetes_objects import NodeObject, PodObject
from pointsman.edge.manifests.pod_requests import (
    GPU_MEMORY,
    GPU_NAMES,
    AmountError,
    amounts,
    parts_of_gpus,
    requests_of,
    resources_of,
    uncounted_gpus,
)

_KIND_LABELS = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "cloud.google.com/gke-accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
)
_GPU_MEMORY_LABEL = "nvidia.com/gpu.memory"
_SLICES_LABEL = "nvidia.com/gpu.replicas"
_ENDED = ("Succeeded", "Failed")
_RESERVATIONS = ("kai-resource-reservation", "runai-reservation")
"""Namespaces where KAI holds a whole device for the pods that share it."""
_GPU_GROUP = "runai-gpu-group"
_SHOWN = 3
_MOST_GPUS = 1024
_MOST = 2**53


@dataclass
class _Seen:
    """What is told about a cluster in a few lines, whatever its size."""

    waiting: list[str] = field(default_factory=list)
    homeless: list[str] = field(default_factory=list)
    unreported: list[str] = field(default_factory=list)
    sliced: list[str] = field(default_factory=list)
    unsized: list[str] = field(default_factory=list)
    uncounted: Counter[str] = field(default_factory=Counter)
    other_kinds: Counter[str] = field(default_factory=Counter)
    pods: int = 0

    def notes(self) -> Iterator[str]:
        if not self.pods:
            yield "there are no pods in the files, so all of each node counts as free; `kubectl get nodes,pods -A`"
        if self.waiting:
            yield f"{_some(self.waiting, 'pod')} without a node: nothing is held for them"
        if self.homeless:
            yield f"{_some(self.homeless, 'pod')} on nodes that are not in the files: left out"
        if self.unreported:
            yield f"{_some(self.unreported, 'node')} without a Ready condition: counted as down"
        if self.sliced:
            yield f"{_some(self.sliced, 'node')} with time-sliced GPUs: every slice counts as a GPU"
        if self.unsized:
            yield (
                f"{_some(self.unsized, 'pod')} with {GPU_MEMORY} on nodes without label {_GPU_MEMORY_LABEL}: "
                "each counts as a whole GPU"
            )
        for name, count in sorted(self.uncounted.items()):
            yield f"{name} on {count} node{'s' if count > 1 else ''}: not counted as GPUs"
        if self.other_kinds:
            names = ", ".join(f"{kind or 'without a kind'} ({count})" for kind, count in self.other_kinds.items())
            yield f"objects that are neither nodes nor pods are left out: {names}"


def cluster_of_objects(items: Iterable[Item]) -> LoadedCluster:
    """The cluster of all objects of all files. Raises ConfigError that names file, line and field."""
    seen = _Seen()
    nodes: dict[str, Node] = {}
    pods: dict[tuple[str, str], tuple[Item, PodObject]] = {}
    for item in items:
        if item.kind == "Node":
            node = _node(item, item.read(NodeObject), seen)
            if node.name in nodes:
                item.refuse(("metadata", "name"), f"node {node.name} is there twice; give each file once")
            nodes[node.name] = node
        elif item.kind == "Pod":
            pod = item.read(PodObject)
            key = (pod.metadata.namespace, pod.metadata.name)
            if key in pods:
                item.refuse(("metadata", "name"), f"pod {'/'.join(key)} is there twice; give each file once")
            pods[key] = item, pod
        else:
            seen.other_kinds[item.kind] += 1
    seen.pods = len(pods)
    held = tuple(_held(pods.values(), nodes, seen))
    return LoadedCluster(Cluster(tuple(nodes.values()), held), None, tuple(seen.notes()))


def _node(item: Item, node: NodeObject, seen: _Seen) -> Node:
    name, labels = node.metadata.name, node.metadata.labels or {}
    if not name:
        item.refuse(("metadata", "name"), "is empty; expected the node's name")
    ready = next((each.status for each in node.status.conditions or [] if each.type == "Ready"), None)
    if node.status.allocatable is None and ready == "True":  # one that has just joined has neither
        item.refuse(("status",), f"allocatable is missing; what node {name} has for pods is expected there")
    try:
        there = amounts(node.status.allocatable, ("status", "allocatable"))
    except AmountError as error:
        item.refuse(error.path, str(error))
    if sum(there.get(gpu, 0) for gpu in GPU_NAMES) > _MOST_GPUS or max(there.values(), default=0) > _MOST:
        item.refuse(("status", "allocatable"), "expected amounts that one machine can have")
    if ready is None:
        seen.unreported.append(name)
    if labels.get(_SLICES_LABEL, "1") not in ("0", "1"):
        seen.sliced.append(name)
    seen.uncounted.update(uncounted_gpus(key for key, amount in there.items() if amount))
    for number, taint in enumerate(node.spec.taints or []):
        if taint.effect not in EFFECTS:
            item.refuse(("spec", "taints", number, "effect"), f"expected {', '.join(EFFECTS)}, not {taint.effect!r}")
    return Node(
        name=name,
        gpus=int(sum(there.get(gpu, 0) for gpu in GPU_NAMES)),
        gpu_kind=next((labels[label] for label in _KIND_LABELS if labels.get(label)), None),
        cpu_milli=int(there.get("cpu", 0) * 1000),
        memory_bytes=int(there.get("memory", 0)),
        labels=labels,
        taints=tuple(Taint(taint.key, taint.value, taint.effect) for taint in node.spec.taints or []),
        cordoned=node.spec.unschedulable or node.metadata.deletion_timestamp is not None,
        ready=ready == "True",
    )


def _held(pods: Iterable[tuple[Item, PodObject]], nodes: Mapping[str, Node], seen: _Seen) -> Iterator[ForeignPod]:
    """What pods hold: those that ended nothing, those that are being deleted still all of it."""
    there = []
    for item, pod in pods:
        name = f"{pod.metadata.namespace}/{pod.metadata.name}"
        if pod.status.phase in _ENDED:
            continue
        if not pod.spec.node_name:
            seen.waiting.append(name)
        elif pod.spec.node_name not in nodes:
            seen.homeless.append(name)
        else:
            there.append((item, pod))
    devices = _devices_of_groups(pod for _, pod in there)
    shared = {key for _, pod in there if not _is_reservation(pod) for key in _groups(pod)}
    for item, pod in there:
        if _is_reservation(pod) and (groups := _groups(pod)) and shared.issuperset(groups):
            continue  # the pods that share the device are counted themselves
        try:
            yield from _parts(pod, nodes[pod.spec.node_name or ""], devices, seen)
        except AmountError as error:
            item.refuse(error.path, str(error))
        except ValueError as error:
            item.refuse(("spec",), f"expected {error}")


def _parts(pod: PodObject, node: Node, devices: Mapping[tuple[str, str], int], seen: _Seen) -> Iterator[ForeignPod]:
    """One pod; of one that has parts of several devices, each part."""
    meta = pod.metadata
    asked = resources_of(requests_of(pod))
    memory = node.labels.get(_GPU_MEMORY_LABEL, "")
    size = int(memory) if memory.isdecimal() else None
    shares = parts_of_gpus(pod, size or None) if not asked.gpu_milli else ()
    known = tuple(devices[key] for key in _groups(pod) if key in devices and devices[key] < node.gpus)
    if not shares:
        yield ForeignPod(meta.name, meta.namespace, node.name, asked, known if asked.gpu_milli == 1000 else ())
        return
    if GPU_MEMORY in (meta.annotations or {}) and not size:
        seen.unsized.append(f"{meta.namespace}/{meta.name}")
    for number, share in enumerate(shares):
        rest = asked if number == 0 else Resources()
        requests = Resources(share, rest.cpu_milli, rest.memory_bytes)
        yield ForeignPod(meta.name, meta.namespace, node.name, requests, known[number : number + 1])


def _devices_of_groups(pods: Iterable[PodObject]) -> dict[tuple[str, str], int]:
    """A device for each group of pods that share one, by node and group.

    Which one it really is does not matter, as long as two groups are not on the same.
    """
    found: dict[tuple[str, str], int] = {}
    used: Counter[str] = Counter()
    for pod in pods:
        for key in _groups(pod):
            if key not in found:
                found[key] = used[key[0]]
                used[key[0]] += 1
    return found


def _groups(pod: PodObject) -> list[tuple[str, str]]:
    """Node and group of each device that it shares, as KAI writes them on the pod."""
    labels = pod.metadata.labels or {}
    one = [labels[_GPU_GROUP]] if labels.get(_GPU_GROUP) else []
    several = [label.removeprefix(f"{_GPU_GROUP}/") for label in labels if label.startswith(f"{_GPU_GROUP}/")]
    return [(pod.spec.node_name or "", group) for group in several or one]


def _is_reservation(pod: PodObject) -> bool:
    return pod.metadata.namespace in _RESERVATIONS


def _some(names: list[str], what: str) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{len(names)} {what}{'s' if len(names) > 1 else ''} ({', '.join(names[:_SHOWN])}{more})"
