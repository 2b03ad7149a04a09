"""What a pod template says that placement needs: resources, selectors, tolerations, the model's name."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

import msgspec

from pointsman.core.model.errors import ConfigError
from pointsman.core.placement.resources import Resources
from pointsman.edge.configuration.nodes import MappingNode, SequenceNode
from pointsman.edge.manifests.dynamo_fields import Fields
from pointsman.edge.manifests.kubernetes_documents import deepest, plain
from pointsman.edge.manifests.kubernetes_objects import ObjectMeta, PodObject, PodSpec
from pointsman.edge.manifests.pod_requests import (
    GPU_NAMES,
    AmountError,
    parts_of_gpus,
    requests_of,
    resources_of,
    uncounted_gpus,
)
from pointsman.edge.manifests.quantity import Cpu, Gpus, Memory

CLASSES = {"train": 50, "build-preemptible": 75, "build": 100, "inference": 125}
"""Priority classes that come with KAI; those of 100 and more are not preempted."""
_RUNNING = frozenset(
    [
        "volumes",
        "serviceAccountName",
        "serviceAccount",
        "imagePullSecrets",
        "securityContext",
        "restartPolicy",
        "hostIPC",
        "hostNetwork",
        "hostPID",
        "dnsPolicy",
        "dnsConfig",
        "terminationGracePeriodSeconds",
        "shareProcessNamespace",
        "automountServiceAccountToken",
        "enableServiceLinks",
        "hostname",
        "subdomain",
        "hostAliases",
        "runtimeClassName",
        "schedulerName",
        "activeDeadlineSeconds",
        "readinessGates",
    ]
)
_MODEL = re.compile(r"--(model|model-path|served-model-name)[ =]+['\"]?([^\s'\"]+)")
_WHOLE = 1000
CLAIMS = "left out: devices by claim are not counted; write gpus yourself"


def pod_fields(spec: Fields, pod: dict[str, Any], annotations: dict[str, str]) -> dict[str, Any]:
    """Keys of a role of ours, of a pod's spec; `pod` is it as Kubernetes has it, for what it asks for."""
    found: dict[str, Any] = {}
    amounts = _amounts(spec, pod, annotations)
    if amounts:
        found["resources"] = amounts
    selector = _selector(spec)
    if selector:
        found["selector"] = selector
    tolerations = _tolerations(spec)
    if tolerations:
        found["tolerations"] = tolerations
    for key in ("nodeName", "topologySpreadConstraints"):
        if key in spec:
            spec.note(key, "left out: there is nothing like it here")
    if "resourceClaims" in spec:
        spec.note("resourceClaims", CLAIMS)
    for key in ("containers", "initContainers", "mainContainer"):
        if key in spec:
            spec.note(key, "of it only resources are used, and the model's name in its arguments", matters=False)
    for key in ("overhead", "resources"):
        spec.get(key)
    spec.rest(_RUNNING)
    return found


def model_in(container: Fields) -> str | None:
    """The model that a container is started with, by its arguments: the name that clients use where that is said."""
    words = []
    for key in ("command", "args"):
        node = container.get(key)
        if isinstance(node, SequenceNode):
            words += [str(plain(each)) for each in node.values]
    named = {option: model for option, model in reversed(_MODEL.findall(" ".join(words))) if not model.startswith("$")}
    return next((named[option] for option in ("served-model-name", "model", "model-path") if option in named), None)


def priority_of(spec: Fields, key: str = "priorityClassName") -> dict[str, Any]:
    """Keys of a deployment of ours for a priority class."""
    name = spec.text(key)
    if name is None:
        return {}
    if name not in CLASSES:
        spec.note(
            key, f"{name} is not known here; write its number as priority, and preemptible: false if nobody may evict"
        )
        return {}
    spec.note(key, f"{name} is {CLASSES[name]} with KAI")
    return {"priority": CLASSES[name], "preemptible": CLASSES[name] < CLASSES["build"]}


def _amounts(spec: Fields, pod: dict[str, Any], annotations: dict[str, str]) -> dict[str, str | int]:
    try:
        read = PodObject(ObjectMeta("pod", annotations=annotations), msgspec.convert(pod, PodSpec))
        asked = requests_of(read)
        shares = parts_of_gpus(read, None) if not any(asked.get(name) for name in GPU_NAMES) else ()
    except AmountError as error:
        path = error.path[1:] if error.path[0] == "spec" else error.path
        where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
        place = f"{spec.node.place.source}:{deepest(spec.node, path)}"
        raise ConfigError(f"{place}: {spec.path}{where}: {error}") from None
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(f"{spec.node.place}: {spec.path}: {error}") from None
    for name in GPU_NAMES:
        if asked.get(name, Fraction(0)).denominator != 1:  # Kubernetes would refuse the pod
            raise ConfigError(
                f"{spec.node.place}: {spec.path}: {name}: expected whole GPUs, not {float(asked[name]):g}; for a part "
                "of one there is the annotation gpu-fraction"
            )
    for name in sorted(uncounted_gpus(asked)):
        spec.notes.add(spec.node.place, spec.path, f"{name}: slices of GPUs are not counted; write gpus yourself")
    total = _total(spec, asked)
    if len(shares) > 1:
        spec.notes.add(
            spec.node.place, spec.path, "parts of several GPUs: a pod has a part of one here; written as whole ones"
        )
        total = Resources(len(shares) * _WHOLE, total.cpu_milli, total.memory_bytes)
    elif shares:
        if shares[0] == _WHOLE and "gpu-memory" in annotations:
            spec.notes.add(
                spec.node.place, spec.path, "gpu-memory is written as a whole GPU; write the part of one as gpus"
            )
        total = Resources(shares[0], total.cpu_milli, total.memory_bytes)
    found: dict[str, str | int] = {}
    if total.gpu_milli:
        found["gpus"] = str(Gpus(total.gpu_milli))
    if total.cpu_milli:
        found["cpu"] = str(Cpu(total.cpu_milli))
    if total.memory_bytes:
        found["memory"] = str(Memory(total.memory_bytes))
    return {key: int(value) if str(value).isdecimal() else value for key, value in found.items()}


def _total(spec: Fields, asked: dict[str, Fraction]) -> Resources:
    try:
        return resources_of(asked)
    except ValueError as error:
        raise ConfigError(f"{spec.node.place}: {spec.path}: resources: expected {error}") from None


def _selector(spec: Fields) -> dict[str, list[str]]:
    found = {}
    labels = spec.fields("nodeSelector")
    for label in labels:
        found[label] = [labels.text(label, may_be_empty=True) or ""]
    affinity = spec.fields("affinity")
    for key in ("podAffinity", "podAntiAffinity"):
        if key in affinity:
            affinity.note(key, "left out: say topology or near instead")
    of_nodes = affinity.fields("nodeAffinity")
    required = of_nodes.fields("requiredDuringSchedulingIgnoredDuringExecution")
    terms = required.get("nodeSelectorTerms")
    if isinstance(terms, SequenceNode) and terms.values:
        labels_of_term = _term(plain(terms.values[0])) if len(terms.values) == 1 else None
        if labels_of_term is None:
            required.note(
                "nodeSelectorTerms", "left out: only one term with operators In and Exists becomes a selector"
            )
        else:
            for label, values in labels_of_term.items():  # both hold: what the selector says, and what the term says
                both = [value for value in values if value in found[label]] if label in found and values else None
                if both == []:
                    required.refuse(
                        "nodeSelectorTerms", f"{label} is {found[label][0]!r} by nodeSelector; no node is both"
                    )
                found[label] = both or found.get(label, values)
    required.rest()
    of_nodes.rest()
    affinity.rest()
    return found


def _term(term: Any) -> dict[str, list[str]] | None:
    """A node selector term as a selector; None where it says more than one can."""
    if not isinstance(term, dict) or set(term) != {"matchExpressions"}:
        return None
    expressions = term["matchExpressions"]
    if not isinstance(expressions, list) or not all(isinstance(each, dict) for each in expressions):
        return None
    found: dict[str, list[str]] = {}
    for each in expressions:
        values = each.get("values") or []
        if not isinstance(each.get("key"), str) or not isinstance(values, list):
            return None
        label, operator = each.get("key"), each.get("operator")
        if not label or label in found or operator not in ("In", "Exists") or (operator == "In") != bool(values):
            return None
        found[label] = [str(value) for value in values]
    return found


def _tolerations(spec: Fields) -> list[dict[str, str]]:
    node = spec.get("tolerations")
    if node is None:
        return []
    if not isinstance(node, SequenceNode):
        spec.refuse("tolerations", "expected a list")
    found = []
    for number, each in enumerate(node.values):
        if not isinstance(each, MappingNode):
            spec.refuse("tolerations", f"expected keys and values in each item, not {plain(each)!r}")
        fields = Fields(each, f"{spec.path}.tolerations[{number}]", spec.notes)
        known = ("key", "operator", "value", "effect")
        found.append({key: value for key in known if (value := fields.text(key, may_be_empty=True))})
        fields.rest(("tolerationSeconds",))
    return found
