"""ConfigTree: the whole configuration, one attribute a section."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from pointsman.edge.configuration.auth import Auth
from pointsman.edge.configuration.conflict import KeyConflictError
from pointsman.edge.configuration.control_plane import ControlPlane, no_such_level
from pointsman.edge.configuration.decision_log import DecisionLog
from pointsman.edge.configuration.discovery import Discovery
from pointsman.edge.configuration.etcd import Etcd
from pointsman.edge.configuration.execution_group import ExecutionGroup
from pointsman.edge.configuration.failover import Failover
from pointsman.edge.configuration.links import Links, unknown_prior
from pointsman.edge.configuration.metrics import Metrics
from pointsman.edge.configuration.replicas import Replicas
from pointsman.edge.configuration.routing import Routing
from pointsman.edge.configuration.tenants import Tenants


class ConfigTree(msgspec.Struct, frozen=True, kw_only=True):
    """The whole configuration. Every key has a default except an engine's `url`."""

    control_plane: Annotated[
        ControlPlane, Meta(description="Where the front end listens, its limits and time-outs.")
    ] = msgspec.field(name="control-plane", default=ControlPlane())
    execution_group: Annotated[ExecutionGroup, Meta(description="The engines.")] = msgspec.field(
        name="execution-group", default=ExecutionGroup()
    )
    discovery: Annotated[Discovery, Meta(description="Where engines are found that are not written in this file.")] = (
        Discovery()
    )
    etcd: Annotated[Etcd, Meta(description="Where an etcd is, for those sections that need one.")] = Etcd()
    replicas: Annotated[
        Replicas, Meta(description="Other front ends of the same fleet ([replicas.md](replicas.md)).")
    ] = Replicas()
    routing: Annotated[Routing, Meta(description="Who decides, and by what.")] = Routing()
    links: Annotated[
        Links,
        Meta(description="What is known of links between machines before KV moves over them ([links.md](links.md))."),
    ] = Links()
    auth: Annotated[Auth, Meta(description="Who may ask ([security.md](security.md)).")] = Auth()
    tenants: Annotated[
        Tenants, Meta(description="How much each tenant may ask for ([security.md](security.md#limits)).")
    ] = Tenants()
    failover: Annotated[Failover, Meta(description="What happens to a request whose engine fails it.")] = Failover()
    decision_log: Annotated[DecisionLog, Meta(description="What is kept of decisions, in memory and on disk.")] = (
        msgspec.field(name="decision-log", default=DecisionLog())
    )
    metrics: Annotated[Metrics, Meta(description="What is read from engines and offered at `/metrics`.")] = Metrics()

    def __post_init__(self) -> None:
        plane = self.control_plane
        if not is_loopback(plane.admin_host) and not self.auth.has_admin_key and not self.auth.admin_open:
            raise KeyConflictError(
                "control-plane.admin_host",
                f"{plane.admin_host} lets other machines change this front end, and no key is asked for: give "
                "auth.admin_key_env, or say auth.admin_open: true",
            )
        levels = plane.topology_levels
        for i, node in enumerate(self.execution_group.nodes):
            for level in node.topology:
                if level not in levels:
                    raise KeyConflictError(f"execution-group.nodes[{i}].topology.{level}", no_such_level(level, levels))
        alone = self.execution_group.without_decode()
        if alone is not None and self.discovery.file is None and not self.discovery.etcd:
            raise KeyConflictError(
                f"execution-group.nodes[{alone[0]}].node_role",
                f"prefill, and nobody decodes {alone[1]}: give another engine of it node_role decode or both, or name "
                "a place where others are found (discovery)",
            )
        if self.discovery.etcd and not self.etcd.endpoints:
            raise KeyConflictError("discovery.etcd", "etcd.endpoints is missing: name the client ports of its members")
        if self.replicas.etcd and not self.etcd.endpoints:
            raise KeyConflictError("replicas.etcd", "etcd.endpoints is missing: name the client ports of its members")
        prior = unknown_prior(self.links, levels)
        if prior is not None:
            raise KeyConflictError(f"links.priors.{prior}", no_such_level(prior, levels))
        guards = self.routing.guards
        if guards.gpu_utilization_threshold is not None and not self.metrics.collect_gpu_utilization:
            raise KeyConflictError(
                "routing.guards.gpu_utilization_threshold",
                "metrics.collect_gpu_utilization is false, so nobody knows how busy GPUs are; set it to true",
            )
        if guards.max_topology_distance is not None and not levels:
            raise KeyConflictError(
                "routing.guards.max_topology_distance",
                "control-plane.topology_levels is missing: name the levels, from near to far",
            )


def is_loopback(host: str) -> bool:
    """Only this machine can connect to that address."""
    return host in ("localhost", "::1") or host.startswith("127.")
