"""source_of: what a node of the configuration, or of another place, says of an engine."""

from __future__ import annotations

from collections.abc import Mapping

from pointsman.core.model.transfer import TransferMode
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.cluster.topology import topology_distance
from pointsman.edge.configuration.control_plane import ControlPlane
from pointsman.edge.configuration.execution_group import Node
from pointsman.edge.configuration.links import place_of
from pointsman.edge.configuration.named import named
from pointsman.edge.configuration.secret import secret_of_environment


def source_of(node: Node, plane: ControlPlane, environ: Mapping[str, str]) -> WorkerSource:
    """`environ` holds the variable that `api_key_env` names. Raises ConfigError when it is missing."""
    return WorkerSource(
        name=node.engine_name,
        url=str(node.url),
        role=node.node_role,
        gpu_count=node.gpu_count,
        max_batch_size=node.max_batch_size,
        queue_depth_threshold=node.queue_depth_threshold,
        models=node.models,
        kind=node.kind,
        kv_capacity_tokens=node.kv_capacity_tokens,
        kv_events=node.kv_events,
        profile=node.profile,
        weight=node.weight,
        max_in_flight=node.max_in_flight,
        topology_distance=topology_distance(plane.topology_levels, plane.topology, node.topology),
        gpu_metrics_url=node.gpu_metrics_url,
        gpus=node.gpus,
        tls=node.tls,
        place=place_of(plane.topology_levels, node.topology),
        moves_kv=node.kv_cache_transfer is not TransferMode.OFF,
        cache_transport=node.cache_transport,
        api_key=_api_key(node, environ),
    )


def _api_key(node: Node, environ: Mapping[str, str]) -> str | None:
    if node.api_key is not None:
        return node.api_key.reveal()
    if node.api_key_env is None:
        return None
    with named(f"execution-group.nodes: engine {node.engine_name}"):
        return secret_of_environment(node.api_key_env, environ, "api_key_env").reveal()
