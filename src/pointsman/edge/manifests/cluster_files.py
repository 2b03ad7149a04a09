"""Files of a cluster, of whatever kind: ours, or kubectl's, also in several files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
_SHOWN = 3
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
        return replace(loaded, topology=topology, notes=(*loaded.notes, *_gaps(loaded.cluster.nodes, topology)))
    if loaded.topology is not None:
        return replace(loaded, notes=(*loaded.notes, *_gaps(loaded.cluster.nodes, loaded.topology)))
    usual = Topology(tuple(level for level in USUAL_LEVELS if _has(loaded.cluster.nodes, level.label)))
    found = ", ".join(f"{level.label}={level.name}" for level in usual.levels) or "none of the usual labels is there"
    notes = (f"levels by labels of the nodes: {found}", *_gaps(loaded.cluster.nodes, usual))
    return replace(loaded, topology=usual, notes=(*loaded.notes, *notes))


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


def _gaps(nodes: Sequence[Node], topology: Topology) -> Iterator[str]:
    """Nodes with GPUs that a constraint at a level leaves out, since they lack its label; others seldom have one."""
    for level in topology.levels:
        if not _has(nodes, level.label):
            yield f"label {level.label} is on no node: no domains at its level"
            continue
        without = [node.name for node in nodes if node.gpus and not node.labels.get(level.label)]
        if without:
            count = f"{len(without):,} node{'s' * (len(without) > 1)}"
            some = f"{', '.join(without[:_SHOWN])}{', …' if len(without) > _SHOWN else ''}"
            yield (
                f"label {level.label} is missing on {count} with GPUs ({some}): "
                f"in no {level.name}, so nothing that has to be in one goes there"
            )


def _has(nodes: Sequence[Node], label: str) -> bool:
    return any(node.labels.get(label) for node in nodes)
