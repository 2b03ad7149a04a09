"""Our cluster files: read and written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pointsman.core.model.errors import ConfigError, PlacementError
from pointsman.core.placement.cluster import NO_SCHEDULE, Cluster, ForeignPod, Node, Taint
from pointsman.core.placement.resources import Resources
from pointsman.core.placement.topology import Level, Topology
from pointsman.edge.configuration.build import build
from pointsman.edge.configuration.nodes import MappingNode
from pointsman.edge.manifests.cluster_spec import ClusterSpec, NodeSpec
from pointsman.edge.manifests.quantity import Cpu, Gpus, Memory

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "none", "y", "n"}


@dataclass(frozen=True)
class LoadedCluster:
    """A cluster as a file describes it. `topology` None: the file does not say."""

    cluster: Cluster
    topology: Topology | None
    notes: tuple[str, ...] = ()
    """What was left out or assumed, for people."""


def cluster_of(document: MappingNode) -> LoadedCluster:
    """Of a parsed cluster file. Raises ConfigError that names the line and key."""
    spec = build(document, ClusterSpec)
    try:
        topology = Topology(tuple(Level(level.name, level.label, level.cost) for level in spec.topology))
        pods = tuple(
            ForeignPod(
                pod.name,
                pod.namespace,
                pod.node,
                Resources(pod.gpus.milli, pod.cpu.milli, pod.memory.bytes),
                pod.devices,
            )
            for pod in spec.pods
        )
        cluster = Cluster(tuple(_nodes(spec, topology)), pods)
    except PlacementError as error:
        raise ConfigError(f"{document.place}: {error}") from None
    return LoadedCluster(cluster, topology if spec.topology else None)


def _nodes(spec: ClusterSpec, topology: Topology) -> Iterator[Node]:
    label_of = {level.name: level.label for level in topology.levels}
    made = dict.fromkeys(label_of, 0)  # domains so far: another class begins new ones
    for each in spec.nodes:
        for position, name in enumerate(each.names()):
            labels = {
                label_of[level]: f"{level}-{made[level] + 1 + position // size}" for level, size in each.domains.items()
            }
            yield _node(each, name, {**labels, **each.labels})
        for level, size in each.domains.items():
            made[level] += -(-(each.count or 1) // size)


def _node(each: NodeSpec, name: str, labels: Mapping[str, str]) -> Node:
    return Node(
        name=name,
        gpus=each.gpus,
        gpu_kind=each.gpu,
        cpu_milli=each.cpu.milli,
        memory_bytes=each.memory.bytes,
        labels=labels,
        taints=tuple(Taint(taint.key, taint.value, taint.effect) for taint in each.taints),
        cordoned=each.cordoned,
        ready=each.ready,
    )


def cluster_text(cluster: Cluster, topology: Topology) -> str:
    """A cluster file, a line a node and a pod."""
    lines = []
    if topology.levels:
        lines.append("topology:                       # near to far")
    for level in topology.levels:
        cost = {} if level.cost is None else {"cost": str(level.cost)}
        lines.append(f"  - {_flow({'name': _word(level.name), 'label': _word(level.label), **cost})}")
    lines.append("nodes:")
    lines += [f"  - {_flow(_node_fields(node))}" for node in cluster.nodes]
    if cluster.pods:
        lines.append("pods:")
    lines += [f"  - {_flow(_pod_fields(pod))}" for pod in cluster.pods]
    return "\n".join(lines) + "\n"


def _node_fields(node: Node) -> dict[str, str]:
    found = {"name": _word(node.name)}
    if node.gpus:
        found["gpus"] = str(node.gpus)
    if node.gpu_kind is not None:
        found["gpu"] = _word(node.gpu_kind)
    found |= {"cpu": str(Cpu(node.cpu_milli)), "memory": str(Memory(node.memory_bytes))}
    if node.labels:
        found["labels"] = _flow({_word(key): _word(value) for key, value in node.labels.items()})
    if node.taints:
        found["taints"] = f"[{', '.join(_flow(_taint_fields(taint)) for taint in node.taints)}]"
    if node.cordoned:
        found["cordoned"] = "true"
    if not node.ready:
        found["ready"] = "false"
    return found


def _taint_fields(taint: Taint) -> dict[str, str]:
    found = {"key": _word(taint.key)}
    if taint.value:
        found["value"] = _word(taint.value)
    if taint.effect != NO_SCHEDULE:
        found["effect"] = taint.effect
    return found


def _pod_fields(pod: ForeignPod) -> dict[str, str]:
    found = {"name": _word(pod.name), "namespace": _word(pod.namespace), "node": _word(pod.node)}
    if pod.requests.gpu_milli:
        found["gpus"] = str(Gpus(pod.requests.gpu_milli))
    if pod.requests.cpu_milli:
        found["cpu"] = str(Cpu(pod.requests.cpu_milli))
    if pod.requests.memory_bytes:
        found["memory"] = str(Memory(pod.requests.memory_bytes))
    if pod.devices:
        found["devices"] = f"[{', '.join(map(str, pod.devices))}]"
    return found


def _flow(fields: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{key}: {value}" for key, value in fields.items()) + "}"


def _word(text: str) -> str:
    """As YAML reads it back as text: plain where that is certain, else quoted."""
    plain = _PLAIN.fullmatch(text) is not None and text.lower() not in _WORDS
    return text if plain else json.dumps(text, ensure_ascii=True)
