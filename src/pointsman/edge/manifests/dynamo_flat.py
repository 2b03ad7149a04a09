"""The flat DynamoDeployment form: a model, prefill and decode side by side, topology in annotations."""

from __future__ import annotations

from typing import Any

from pointsman.edge.configuration.nodes import MappingNode, SequenceNode
from pointsman.edge.manifests.dynamo_fields import Fields
from pointsman.edge.manifests.dynamo_pods import pod_fields, priority_of
from pointsman.edge.manifests.kubernetes_documents import plain
from pointsman.edge.manifests.pod_requests import GPU_NAMES
from pointsman.edge.manifests.quantity import quantity

_RESOURCES = ("cpu", "memory")
_HARMLESS = frozenset(["image", "env", "envs", "args", "command", "backend", "framework"])
_POD_KEYS = ("nodeSelector", "tolerations", "affinity")


def flat_fields(spec: Fields) -> dict[str, Any]:
    """Keys of a deployment of ours. Raises ConfigError for values that can't be."""
    found: dict[str, Any] = {}
    model = spec.get("model")
    if isinstance(model, MappingNode):
        names = spec.fields("model")
        found["model"] = names.text("name") or names.text("id")
        names.rest(("revision",))
    elif model is not None:
        found["model"] = spec.text("model")
    found |= priority_of(spec)
    roles = {}
    for name in spec:
        value = spec.node.values[name]
        if name in ("prefill", "decode") or (isinstance(value, MappingNode) and "replicas" in value.values):
            role = _role(spec.fields(name), name)
            if role is not None:
                roles[name] = role
    if "prefill" not in spec and "decode" not in spec and not roles:
        spec.refuse("prefill", "is missing; expected prefill and decode with replicas and resources")
    spec.rest(_HARMLESS)
    found["roles"] = roles
    return found


def _role(fields: Fields, name: str) -> dict[str, Any] | None:
    replicas = fields.integer("replicas", 0)
    count: Any = _scaled(fields, 1 if replicas is None else replicas)
    if count == 0:
        fields.note("replicas", f"0: role {name} is left out; it has no pods")
        return None
    spec = Fields(_pod_node(fields), fields.path, fields.notes)
    pod = {"containers": [{"name": "main", "resources": _resources(fields)}]}
    found: dict[str, Any] = {"replicas": count, **pod_fields(spec, pod, {})}
    fields.rest(_HARMLESS)
    return found


def _pod_node(fields: Fields) -> MappingNode:
    there = {key: node for key in _POD_KEYS if (node := fields.get(key)) is not None}
    return MappingNode(fields.node.place, there, {key: fields.place(key) for key in there})


def _scaled(fields: Fields, replicas: int) -> Any:
    """Replicas, with the limits of the autoscaler where it is on."""
    scale = fields.fields("autoscale")
    if not scale:
        return replicas
    low, high = scale.integer("minReplicas", 0), scale.integer("maxReplicas", 1)
    on = scale.truth("enabled")
    if on is False:
        scale.note("enabled", "false: minReplicas and maxReplicas are left out, replicas is the floor", matters=False)
        scale.get("targetGPUUtilization")
        scale.rest()
        return replicas
    if "targetGPUUtilization" in scale:
        scale.note(
            "targetGPUUtilization",
            "left out: decode GPUs look busy at any load, so it says nothing; scale by queued requests, TTFT, ITL",
        )
    scale.rest()
    low = 1 if low is None else low
    high = max(low, replicas) if high is None else high
    if low > high:
        scale.refuse("minReplicas", f"{low} is above maxReplicas, {high}")
    if replicas and not low <= replicas <= high:
        fields.note("replicas", f"{replicas} is outside of autoscale's {low} to {high}, which are taken")
    elif "replicas" in fields and (low, high) != (replicas, replicas):
        fields.note("replicas", f"{replicas} is where it starts; the floor is autoscale's {low}, the most {high}")
    return low if low == high and low else {"min": low, "max": high}


def _resources(fields: Fields) -> dict[str, Any]:
    """`{requests, limits}` as Kubernetes has it, or amounts right away; `gpu` and `gpus` are NVIDIA's."""
    resources = fields.fields("resources")
    parts = [key for key in ("requests", "limits") if key in resources]
    if parts:
        found: dict[str, Any] = {key: _named(resources.fields(key)) for key in parts}
        resources.rest()
        return found
    return {"requests": _named(resources)}


def _named(amounts: Fields) -> dict[str, Any]:
    found = {}
    for key in amounts:
        value = amounts.get(key)
        if isinstance(value, MappingNode | SequenceNode):
            amounts.refuse(key, f"expected an amount, not {plain(value)!r}")
        _check(amounts, key)
        if key in ("gpu", "gpus"):
            found["nvidia.com/gpu"] = plain(value) if value is not None else None
        elif key in _RESOURCES or "/" in key:
            found[key] = plain(value) if value is not None else None
        else:
            amounts.note(key, "left out: not counted here")
    return found


def _check(amounts: Fields, key: str) -> None:
    """Raises ConfigError for what is no amount, and for parts of a GPU, which would be whole ones by rounding."""
    value = plain(amounts.node.values[key])
    if value is None:
        return
    try:
        exact = quantity(value)
    except ValueError:
        amounts.refuse(key, f"expected a quantity such as 8, 500m or 64Gi, not {value!r}")
    if exact.denominator != 1 and (key in ("gpu", "gpus") or key in GPU_NAMES):
        amounts.refuse(key, f"expected whole GPUs, not {value!r}; write the part of one as gpus in the deployment file")
