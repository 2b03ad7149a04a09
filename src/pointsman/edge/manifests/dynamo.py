"""Dynamo's manifests to deployment files of ours; what can't be carried over is told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from pointsman.core.model.errors import ConfigError
from pointsman.core.placement.gang import DECODE, PREFILL
from pointsman.edge.configuration.nodes import MappingNode, Node, SequenceNode, parse_documents
from pointsman.edge.manifests.deployment_file import deployments_of
from pointsman.edge.manifests.dynamo_fields import Fields, Note, Notes
from pointsman.edge.manifests.dynamo_flat import flat_fields
from pointsman.edge.manifests.dynamo_graph import graph_fields, level_of
from pointsman.edge.manifests.kubernetes_documents import plain

GRAPH = "DynamoGraphDeployment"
FLAT = "DynamoDeployment"
_VERSIONS = {"nvidia.com/v1alpha1": "v1alpha1", "nvidia.com/v1beta1": "v1beta1"}
_PLACEMENT = "kai.scheduler/topology-{}-placement"
_QUEUES = ("nvidia.com/kai-scheduler-queue", "kai.scheduler/queue")
_IDENTITY = frozenset(
    [
        "namespace",
        "creationTimestamp",
        "uid",
        "resourceVersion",
        "generation",
        "managedFields",
        "ownerReferences",
        "finalizers",
        "selfLink",
    ]
)


@dataclass(frozen=True)
class Converted:
    """One deployment of ours as text, and what it does not carry over."""

    name: str
    text: str
    notes: tuple[Note, ...]


def convert_dynamo(text: str, source: str) -> tuple[Converted, ...]:
    """Every deployment of a text with one or more YAML documents, those of lists (`kubectl get -o yaml`) one by one.
    Raises ConfigError that names line and field."""
    found, others = [], []
    for document in _single(parse_documents(text, source)):
        kind = _word(document, "kind")
        if kind in (GRAPH, FLAT):
            found.append(document)
        else:
            others.append(document)
    if not found:
        kinds = ", ".join(_word(each, "kind") or "no kind" for each in others) or "nothing"
        raise ConfigError(f"{source}: there is {kinds} in it; expected kind: {GRAPH} or {FLAT}")
    notes = Notes()
    for document in others:
        kind = _word(document, "kind") or "a document without a kind"
        notes.add(document.place, kind, "left out: no deployment", matters=False)
    made = [_converted(document) for document in found if isinstance(document, MappingNode)]
    return (Converted(made[0].name, made[0].text, (*notes.all, *made[0].notes)), *made[1:])


def _single(documents: Iterable[Node]) -> Iterator[Node]:
    """Documents, and instead of lists what is in them."""
    for document in documents:
        items = document.values.get("items") if isinstance(document, MappingNode) else None
        if isinstance(items, SequenceNode):
            yield from items.values
        else:
            yield document


def _converted(document: MappingNode) -> Converted:
    notes = Notes()
    top = Fields(document, "", notes)
    kind, version = top.text("kind"), top.text("apiVersion")
    metadata = top.fields("metadata")
    name = metadata.text("name")
    if name is None:
        top.refuse("metadata", "name is missing; expected the deployment's name")
    spec = top.fields("spec")
    ours: dict[str, Any] = {"name": name}
    if kind == GRAPH:
        if version not in _VERSIONS:
            top.refuse("apiVersion", f"expected one of {', '.join(_VERSIONS)}, not {version!r}")
        of_spec = graph_fields(spec, _VERSIONS[version])
    else:
        of_spec = flat_fields(spec)
    if not of_spec["roles"]:
        raise ConfigError(f"{document.place}: {name}: no role has replicas; there is nothing to place")
    of_metadata = _metadata(metadata)
    topology = {**of_metadata.pop("topology", {}), **of_spec.pop("topology", {})}
    roles = of_spec.pop("roles")
    for role, keys in roles.items():
        if keys.get("stage", role) in (PREFILL, DECODE) and "gpus" not in keys.get("resources", {}):
            notes.add(document.place, role, "asks for no GPU as it is written; write gpus if it needs some")
    ours |= {**of_metadata, **{key: value for key, value in of_spec.items() if value is not None}}
    if topology:
        ours["topology"] = topology
    ours["roles"] = roles
    top.rest(("status",))
    text = _text(ours, notes, document.place.source)
    deployments_of(text, f"what was made of {document.place}")  # it is one of ours, whatever came in
    return Converted(name, text, tuple(notes.all))


def _metadata(metadata: Fields) -> dict[str, Any]:
    """Queue and closeness of the whole, in annotations and labels."""
    found: dict[str, Any] = {}
    topology = {}
    annotations, labels = metadata.fields("annotations"), metadata.fields("labels")
    for which in ("required", "preferred"):
        domain = annotations.text(_PLACEMENT.format(which), may_be_empty=True)
        if domain:
            topology[which] = level_of(domain)
    for fields in (annotations, labels):
        for key in _QUEUES:
            queue = fields.text(key, may_be_empty=True)
            if queue:
                found["queue"] = queue
    named = (fields.text("kai.scheduler/preemptibility", may_be_empty=True) for fields in (labels, annotations))
    preemptible = next((word for word in named if word), None)
    if preemptible:
        found["preemptible"] = preemptible != "non-preemptible"
    if topology:
        found["topology"] = topology
    for fields in (annotations, labels):
        for key in fields:
            if key.startswith("kai.scheduler/") and key not in _carried():
                fields.note(key, "left out: there is nothing like it here")
        fields.rest(tuple(fields))
    metadata.rest(_IDENTITY)
    return found


def _carried() -> tuple[str, ...]:
    placements = tuple(_PLACEMENT.format(which) for which in ("required", "preferred"))
    return (*placements, *_QUEUES, "kai.scheduler/preemptibility")


def _text(ours: dict[str, Any], notes: Notes, source: str) -> str:
    """The file: what was not carried over stands above, as comments."""
    lines = [f"# Made of {source} by pointsman convert."]
    for title, matters in (("Look at these", True), ("Left out, without a part in placement", False)):
        some = [note for note in notes.all if note.matters is matters]
        if some:
            lines.append(f"# {title}:")
            lines += [f"#   {note.path}: {note.text if matters else ''}".rstrip(": ") for note in some]
    body = yaml.safe_dump(ours, sort_keys=False, default_flow_style=None, width=110, allow_unicode=True)
    return "\n".join(lines) + "\n" + body


def _word(document: Node, key: str) -> str:
    node = document.values.get(key) if isinstance(document, MappingNode) else None
    return "" if node is None else str(plain(node))
