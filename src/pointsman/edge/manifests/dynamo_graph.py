"""Dynamo's DynamoGraphDeployment, v1alpha1 (`services`, a mapping) and v1beta1 (`components`, a list)."""

from __future__ import annotations

from typing import Any

from pointsman.edge.configuration.nodes import MappingNode, SequenceNode
from pointsman.edge.manifests.dynamo_fields import Fields
from pointsman.edge.manifests.dynamo_pods import CLAIMS, model_in, pod_fields, priority_of
from pointsman.edge.manifests.kubernetes_documents import plain
from pointsman.edge.manifests.quantity import quantity

_HARMLESS_SPEC = frozenset(["backendFramework", "envs", "env", "pvcs", "restart", "annotations", "labels"])
_HARMLESS_ROLE = frozenset(
    [
        "envs",
        "env",
        "envFromSecret",
        "extraPodMetadata",
        "livenessProbe",
        "readinessProbe",
        "ingress",
        "sharedMemory",
        "sharedMemorySize",
        "volumeMounts",
        "dynamoNamespace",
        "globalDynamoNamespace",
        "serviceName",
        "eppConfig",
        "checkpoint",
        "frontendSidecar",
        "dynamoSidecar",
        "compilationCache",
        "runtimeVersionOverride",
        "annotations",
        "labels",
    ]
)
_STAGES = ("prefill", "decode")
_HOST = ("host", "hostname", "kubernetes.io/hostname", "node")


def level_of(domain: str) -> str:
    """A level of ours for a domain of theirs: an alias, or a node label, whose last part is taken."""
    return "node" if domain in _HOST else domain.rpartition("/")[2]


def graph_fields(spec: Fields, version: str) -> dict[str, Any]:
    """Keys of a deployment of ours, of a spec of that version. Raises ConfigError for values that can't be."""
    found: dict[str, Any] = {}
    found |= priority_of(spec)
    domain = _pack_domain(spec)
    if domain:
        found["topology"] = {"required": domain}
    if version == "v1alpha1":
        services = spec.fields("services")
        if not services:
            spec.refuse("services", "expected at least one service")
        members = [(name, services.fields(name)) for name in services]
    else:
        members = _components(spec)
    roles: dict[str, Any] = {}
    for name, member in members:
        role, model = (_service if version == "v1alpha1" else _component)(name, member)
        if model and "model" not in found:
            found["model"] = model
        if role is not None:
            roles[name] = role
    experimental = spec.fields("experimental")
    if "kvTransferPolicy" in experimental:
        experimental.note(
            "kvTransferPolicy", "of the router, not of placement; say near for prefill and decode instead"
        )
    experimental.rest()
    spec.rest(_HARMLESS_SPEC)
    found["roles"] = roles
    return found


def _components(spec: Fields) -> list[tuple[str, Fields]]:
    node = spec.get("components")
    if not isinstance(node, SequenceNode) or not node.values:
        spec.refuse("components", "expected a list of at least one component")
    found: list[tuple[str, Fields]] = []
    for number, each in enumerate(node.values):
        path = f"{spec.path}.components[{number}]"
        component = Fields.of(each if isinstance(each, MappingNode) else None, path, each.place, spec.notes)
        name = component.text("name")
        if name is None:
            component.refuse("name", "is missing; expected the component's name")
        if any(name == other for other, _ in found):
            component.refuse("name", f"{name} is there twice")
        found.append((name, component))
    return found


def _service(name: str, service: Fields) -> tuple[dict[str, Any] | None, str | None]:
    """v1alpha1."""
    kind, sub = service.text("componentType"), service.text("subComponentType")
    role = _role(name, service, sub or kind)
    if "autoscaling" in service:
        service.note(
            "autoscaling", "left out: Dynamo ignores it in v1alpha1; write replicas: {min: …, max: …} to scale"
        )
    adapter = service.fields("scalingAdapter")
    if adapter.truth("enabled"):
        service.note("scalingAdapter", "left out: its scaler owns the number; write replicas: {min: …, max: …}")
    adapter.rest()
    spec = service.fields("extraPodSpec")
    main = spec.fields("mainContainer")
    model = _model(service) or model_in(main)
    pod = {key: value for key, value in plain(spec.node).items() if key in ("initContainers", "overhead", "resources")}
    container = dict(plain(main.node))
    own = main.fields("resources")
    for part in ("requests", "limits"):
        own.fields(part)  # mappings, or it ends here
    container["resources"] = _kubernetes_resources(service, plain(own.node))
    others = spec.get("containers")
    pod["containers"] = [container, *(plain(others) if isinstance(others, SequenceNode) else [])]
    notes = plain(service.fields("extraPodMetadata").fields("annotations").node)
    fields = pod_fields(spec, pod, {key: str(value) for key, value in notes.items()})
    service.rest(_HARMLESS_ROLE)
    return (None if role is None else {**role, **fields}), model


def _kubernetes_resources(service: Fields, main: dict[str, Any]) -> dict[str, Any]:
    """Dynamo's `{requests, limits: {cpu, memory, gpu, gpuType, custom}}` as Kubernetes writes it.

    What is not said there is the main container's.
    """
    resources = service.fields("resources")
    found: dict[str, Any] = {}
    for part in ("requests", "limits"):
        asked = resources.fields(part)
        gpu_type = asked.text("gpuType") or "nvidia.com/gpu"
        values = dict(main.get(part) or {})
        for key, resource in (("cpu", "cpu"), ("memory", "memory"), ("gpu", gpu_type)):
            if asked.get(key) is not None:
                values[resource] = _amount(asked, key)
        custom = asked.fields("custom")
        values |= {key: _amount(custom, key) for key in custom}
        asked.rest()
        found[part] = values
    if "claims" in resources:
        resources.note("claims", CLAIMS)
    resources.rest()
    return found


def _model(fields: Fields) -> str | None:
    reference = fields.fields("modelRef")
    name = reference.text("name")
    reference.rest(("revision",))
    return name


def _amount(fields: Fields, key: str) -> str:
    value = plain(fields.node.values[key])
    try:
        quantity(value)
    except ValueError:
        fields.refuse(key, f"expected a quantity such as 8, 500m or 64Gi, not {value!r}")
    return str(value)


def _component(name: str, component: Fields) -> tuple[dict[str, Any] | None, str | None]:
    """v1beta1."""
    role = _role(name, component, component.text("type"))
    if "scalingAdapter" in component:
        component.note("scalingAdapter", "left out: its scaler owns the number; write replicas: {min: …, max: …}")
    if "roles" in component:
        component.note("roles", "left out: all pods of a replica are alike here")
    template = component.fields("podTemplate")
    spec = template.fields("spec")
    model = _model(component)
    containers = spec.get("containers")
    if isinstance(containers, SequenceNode):
        for each in containers.values:
            main = Fields.of(each, f"{spec.path}.containers", each.place, spec.notes)
            model = model or model_in(main)
    notes = plain(template.fields("metadata").fields("annotations").node)
    fields = pod_fields(spec, plain(spec.node), {key: str(value) for key, value in notes.items()})
    template.rest()
    component.rest(_HARMLESS_ROLE)
    return (None if role is None else {**role, **fields}), model


def _role(name: str, fields: Fields, kind: str | None) -> dict[str, Any] | None:
    """Replicas, pods a replica, stage and closeness; None for a role that has no replicas."""
    replicas = fields.integer("replicas", 0)
    floor = fields.integer("minAvailable", 1)
    if replicas == 0:
        fields.note("replicas", f"0: role {name} is left out; it has no pods")
        return None
    count = 1 if replicas is None else replicas
    if floor is not None and floor > count:
        fields.refuse("minAvailable", f"{floor} is above replicas, {count}")
    if floor is None and count > 1:
        key = "replicas" if "replicas" in fields else "minAvailable"
        fields.note(key, f"all {count} are the floor here (Grove's default floor is 1); write min to need fewer")
    found: dict[str, Any] = {"replicas": count if floor in (None, count) else {"min": floor, "max": count}}
    multinode = fields.fields("multinode")
    nodes = multinode.integer("nodeCount", 1)
    multinode.rest()
    if nodes is not None and nodes > 1:
        found["pods_per_replica"] = nodes
    if kind in _STAGES:
        found["stage"] = kind
    else:
        guess = next((stage for stage in _STAGES if stage in name.lower()), None)
        if guess and kind in (None, "worker"):
            fields.notes.add(fields.node.place, fields.path, f"taken for {guess}, by its name")
            found["stage"] = guess
    domain = _pack_domain(fields)
    if domain and "pods_per_replica" in found:
        fields.note("topologyConstraint", f"each replica within one {domain}: replica_required")
        found["topology"] = {"replica_required": domain}
    elif domain:
        found["topology"] = {"required": domain}
    return found


def _pack_domain(fields: Fields) -> str | None:
    """The level of a topologyConstraint, which Dynamo always requires."""
    constraint = fields.fields("topologyConstraint")
    domain = constraint.text("packDomain")
    for key in ("topologyProfile", "clusterTopologyName"):
        if key in constraint:
            constraint.note(key, "left out: levels are those of the cluster file or --topology", matters=False)
    constraint.rest()
    return level_of(domain) if domain else None
