"""Files of a cluster, of whatever kind: ours, or kubectl's, also in several files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pointsman.core.model.errors import ConfigError, PlacementError
from pointsman.core.placement.cluster import Node
from pointsman.core.placement.topology import Level, Topology
from pointsman.edge.configuration.nodes import MappingNode, parse_documents
from pointsman.edge.manifests.cluster_file import LoadedCluster, cluster_of
from pointsman.edge.manifests.kubectl import cluster_of_objects
from pointsman.edge.manifests.kubernetes_documents import is_kubernetes, items_of
from pointsman.edge.manifests.manifest_text import read_manifest

_MOST_BYTES = 512 * 2**20
"""Of kubectl's, 20,000 pods are about 200 MB."""
USUAL_LEVELS = (
    Level("nvlink", "nvidia.com/gpu.clique"),
    Level("nvswitch", "nvidia.com/nvswitch"),
    Level("rack", "topology.kubernetes.io/rack"),
    Level("block", "topology.kubernetes.io/block"),
    Level("zone", "topology.kubernetes.io/zone"),
    Level("region", "topology.kubernetes.io/region"),
)
"""Labels by which nodes often say where they are, near to far."""


def read_cluster(paths: Sequence[Path], topology: Topology | None = None) -> LoadedCluster:
    """A cluster with its levels: those given, else those of the file, else the usual labels that its nodes have.

    Raises ConfigError that names file, line and field.
    """
    texts = [read_manifest(path, "a cluster", _MOST_BYTES) for path in paths]
    loaded = _loaded(texts)
    if topology is not None:
        missing = [each.label for each in topology.levels if not _has(loaded.cluster.nodes, each.label)]
        notes = tuple(f"label {label} is on no node: no domains at its level" for label in missing)
        return replace(loaded, topology=topology, notes=(*loaded.notes, *notes))
    if loaded.topology is not None:
        return loaded
    usual = Topology(tuple(level for level in USUAL_LEVELS if _has(loaded.cluster.nodes, level.label)))
    found = ", ".join(f"{level.label}={level.name}" for level in usual.levels) or "none of the usual labels is there"
    return replace(loaded, topology=usual, notes=(*loaded.notes, f"levels by labels of the nodes: {found}"))


def topology_of(text: str) -> Topology:
    """Of `label=name,label=name`, near to far; without a name it is what stands behind the label's last slash.

    Raises ConfigError that names the part.
    """
    levels = []
    try:
        for part in text.split(","):
            label, equals, name = part.strip().partition("=")
            if not label or (equals and not name):
                raise ConfigError(f"--topology {text}: {part!r}: expected label=name, near to far, with commas between")
            levels.append(Level(name or label.rpartition("/")[2], label))
        return Topology(tuple(levels))
    except PlacementError as error:
        raise ConfigError(f"--topology {text}: {error}") from None


def _loaded(texts: Sequence[tuple[str, str]]) -> LoadedCluster:
    for text, source in texts:
        if _is_kubernetes_json(text):
            continue
        documents = parse_documents(text, source)
        if documents and is_kubernetes(documents[0]):
            continue
        if len(texts) > 1:
            raise ConfigError(f"{source}: only files of kubectl can be put together; give one cluster file alone")
        if len(documents) != 1 or not isinstance(documents[0], MappingNode):
            raise ConfigError(f"{source}: expected one cluster, with keys nodes, topology, pods")
        return cluster_of(documents[0])
    items = [item for text, source in texts for item in items_of(text, source)]
    if not any(item.kind == "Node" for item in items):
        raise ConfigError(
            f"{', '.join(source for _, source in texts)}: there are no nodes; expected what "
            "`kubectl get nodes,pods -A -o json` prints"
        )
    return cluster_of_objects(items)


def _is_kubernetes_json(text: str) -> bool:
    """By its first keys: such files are long, and read in a faster way."""
    head = text.lstrip()[:2000]
    return head[:1] == "{" and any(key in head for key in ('"kind"', '"apiVersion"', '"items"'))


def _has(nodes: Sequence[Node], label: str) -> bool:
    return any(node.labels.get(label) for node in nodes)
