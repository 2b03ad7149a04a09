"""Deployment files to gangs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pointsman.core.model.errors import ConfigError, PlacementError
from pointsman.core.placement.cluster import Toleration
from pointsman.core.placement.gang import DECODE, PREFILL, Gang, Near, RoleGroup
from pointsman.core.placement.queues.tree import QueueTree
from pointsman.core.placement.resources import Resources
from pointsman.core.placement.topology import Topology
from pointsman.edge.configuration.build import build
from pointsman.edge.configuration.nodes import MappingNode, Node, Place, ScalarNode, SequenceNode, parse_documents
from pointsman.edge.manifests.deployment_spec import DeploymentSpec, PodResources, RoleSpec
from pointsman.edge.manifests.manifest_text import read_manifest

_MOST_BYTES = 16 * 2**20
_LEVEL_KEYS = ("required", "preferred", "replica_required", "replica_preferred")


@dataclass(frozen=True)
class Deployment:
    """A gang, and what its file says beside that."""

    gang: Gang
    model: str | None
    place: Place
    levels: tuple[tuple[Place, str, str], ...]
    """Where a level is named, by which key, which one."""

    def check_levels(self, topology: Topology) -> None:
        """Raises ConfigError with the line that names a level which this topology lacks."""
        for place, key, level in self.levels:
            try:
                topology.index(level)
            except PlacementError as error:
                raise ConfigError(f"{place}: {key}: {error}") from None

    def check_queue(self, tree: QueueTree) -> None:
        """Raises ConfigError with the line of the deployment if it can't wait in the queue that it names."""
        if not tree.is_leaf(self.gang.queue):
            there = ", ".join(name for name in tree.by_name if tree.is_leaf(name))
            raise ConfigError(
                f"{self.place}: queue: there is no queue {self.gang.queue!r} that gangs can wait in; "
                f"one of {there} is expected"
            )


def read_deployments(path: Path) -> tuple[Deployment, ...]:
    """The deployments of a file, one a YAML document. Raises ConfigError that names file, line and key."""
    return deployments_of(*read_manifest(path, "a deployment", _MOST_BYTES))


def deployments_of(text: str, source: str) -> tuple[Deployment, ...]:
    """The same of a text; `source` names it in messages."""
    documents = parse_documents(text, source)
    if not documents:
        raise ConfigError(f"{source}: is empty; expected a deployment with name and roles")
    return tuple(_deployment(document) for document in documents)


def _deployment(document: Node) -> Deployment:
    if not isinstance(document, MappingNode):
        raise ConfigError(f"{document.place}: expected a deployment with keys such as name, roles, near")
    if "kind" in document.values or "apiVersion" in document.values:
        kind = document.values.get("kind")
        what = kind.value if isinstance(kind, ScalarNode) else "Kubernetes object"
        raise ConfigError(
            f"{document.place}: this is a {what}; `pointsman convert FILE` makes a deployment file of Dynamo's"
        )
    spec = build(_prepared(document), DeploymentSpec)
    return Deployment(_gang(spec, document.place), spec.model, document.place, tuple(_levels(document)))


def _prepared(document: MappingNode) -> MappingNode:
    """Short forms written out: `replicas: 4`, `selector: {label: value}`."""
    roles = document.values.get("roles")
    if not isinstance(roles, MappingNode):
        return document
    long = {
        name: _prepared_role(name, role) if isinstance(role, MappingNode) else role
        for name, role in roles.values.items()
    }
    return _with(document, "roles", MappingNode(roles.place, long, roles.key_places))


def _prepared_role(name: str, role: MappingNode) -> MappingNode:
    replicas, selector = role.values.get("replicas"), role.values.get("selector")
    if isinstance(replicas, ScalarNode) and replicas.value is not None:
        if not isinstance(replicas.value, int) or isinstance(replicas.value, bool) or replicas.value < 1:
            raise ConfigError(
                f"{replicas.place}: roles.{name}.replicas: expected a number of at least 1, or {{min: …, max: …}}, "
                f"not {replicas.value!r}"
            )
        both: dict[str, Node] = {"min": replicas, "max": replicas}
        role = _with(role, "replicas", MappingNode(replicas.place, both, dict.fromkeys(both, replicas.place)))
    if isinstance(selector, MappingNode):
        lists: dict[str, Node] = {
            label: SequenceNode(value.place, (value,)) if isinstance(value, ScalarNode) else value
            for label, value in selector.values.items()
        }
        role = _with(role, "selector", MappingNode(selector.place, lists, selector.key_places))
    return role


def _with(mapping: MappingNode, key: str, value: Node) -> MappingNode:
    return MappingNode(mapping.place, {**mapping.values, key: value}, mapping.key_places)


def _gang(spec: DeploymentSpec, place: Place) -> Gang:
    near = [
        Near(each.roles, level, required)
        for each in spec.near
        for level, required in ((each.required, True), (each.preferred, False))
        if level is not None
    ]
    try:
        return Gang(
            name=spec.name,
            groups=tuple(_group(name, role) for name, role in spec.roles.items()),
            near=tuple(near),
            required=spec.topology.required,
            preferred=spec.topology.preferred,
            queue=spec.queue,
            priority=spec.priority,
            preemptible=spec.preemptible,
            min_runtime_s=spec.min_runtime.s if spec.min_runtime else 0.0,
        )
    except PlacementError as error:
        raise ConfigError(f"{place}: {error}") from None


def _group(name: str, role: RoleSpec) -> RoleGroup:
    tolerations = tuple(
        Toleration(each.key, each.value, each.effect or "", each.operator == "Exists") for each in role.tolerations
    )
    return RoleGroup(
        name=name,
        min_replicas=role.replicas.min,
        max_replicas=role.replicas.max,
        requests=resources_of(role.resources),
        pods_per_replica=role.pods_per_replica,
        stage=role.stage or (name if name in (PREFILL, DECODE) else ""),
        selector=dict(role.selector),
        gpu_kinds=role.gpu_kinds,
        tolerations=tolerations,
        required=role.topology.required,
        preferred=role.topology.preferred,
        replica_required=role.topology.replica_required,
        replica_preferred=role.topology.replica_preferred,
    )


def resources_of(spec: PodResources) -> Resources:
    """Typed amounts as resources."""
    return Resources(spec.gpus.milli, spec.cpu.milli, spec.memory.bytes)


def _levels(document: MappingNode) -> Iterator[tuple[Place, str, str]]:
    """Every place that names a level."""
    yield from _levels_of(document.values.get("topology"), "topology")
    roles = document.values.get("roles")
    if isinstance(roles, MappingNode):
        for name, role in roles.values.items():
            if isinstance(role, MappingNode):
                yield from _levels_of(role.values.get("topology"), f"roles.{name}.topology")
    near = document.values.get("near")
    if isinstance(near, SequenceNode):
        for number, each in enumerate(near.values):
            yield from _levels_of(each, f"near[{number}]")


def _levels_of(node: Node | None, path: str) -> Iterator[tuple[Place, str, str]]:
    if not isinstance(node, MappingNode):
        return
    for key in _LEVEL_KEYS:
        value = node.values.get(key)
        if isinstance(value, ScalarNode) and isinstance(value.value, str) and value.value.lower() != "none":
            yield value.place, f"{path}.{key}", value.value
