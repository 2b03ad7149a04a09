"""Kubernetes objects, as far as placement reads them; whatever else they have is passed over."""

from __future__ import annotations

import msgspec

Quantities = dict[str, str | int | float]


class ObjectMeta(msgspec.Struct, rename="camel"):
    """Who it is."""

    name: str
    namespace: str = "default"
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    deletion_timestamp: str | None = None


class NodeTaint(msgspec.Struct):
    """A taint."""

    key: str
    effect: str
    value: str = ""


class NodeSpec(msgspec.Struct):
    """What an administrator says about a node."""

    unschedulable: bool = False
    taints: list[NodeTaint] | None = None


class Condition(msgspec.Struct):
    """One fact about a node."""

    type: str
    status: str


class NodeStatus(msgspec.Struct):
    """What a node says about itself."""

    allocatable: Quantities | None = None
    conditions: list[Condition] | None = None


class NodeObject(msgspec.Struct):
    """`kind: Node`."""

    metadata: ObjectMeta
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


class Requirements(msgspec.Struct):
    """What a container, or a whole pod, asks for."""

    requests: Quantities | None = None
    limits: Quantities | None = None


class Container(msgspec.Struct, rename="camel"):
    """A container of a pod."""

    name: str = ""
    resources: Requirements | None = None
    restart_policy: str | None = None
    """Of an init container, `Always`: it is a sidecar that stays."""


class PodSpec(msgspec.Struct, rename="camel"):
    """What a pod should be."""

    node_name: str | None = None
    containers: list[Container] = []
    init_containers: list[Container] | None = None
    overhead: Quantities | None = None
    resources: Requirements | None = None


class PodStatus(msgspec.Struct):
    """How far a pod is."""

    phase: str = "Pending"


class PodObject(msgspec.Struct):
    """`kind: Pod`."""

    metadata: ObjectMeta
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)


class Head(msgspec.Struct, rename="camel"):
    """What kind of object a document or an item is."""

    kind: str = ""
    api_version: str = ""
    items: list[msgspec.Raw] | None = None
