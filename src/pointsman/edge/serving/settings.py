"""FrontendSettings: what one front end is told at start."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pointsman.core.ledger.health.settings import HealthSettings
from pointsman.core.model.guards import NO_GUARDS, Guards
from pointsman.core.model.slo import Slo
from pointsman.core.model.transfer import USUAL_RULES, TransferRules
from pointsman.core.timing.link_priors import USUAL_PRIORS, LinkPriors
from pointsman.core.timing.step import StepCoefficients
from pointsman.core.trials.arms import By
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.cluster.replicas.settings import ReplicaSettings
from pointsman.edge.configuration.auth import Auth
from pointsman.edge.configuration.control_plane import ControlPlane
from pointsman.edge.configuration.control_plane import Timeouts as ConfiguredTimeouts
from pointsman.edge.configuration.execution_group import Node
from pointsman.edge.configuration.links import link_priors
from pointsman.edge.configuration.links_file import SavedLink, load_links
from pointsman.edge.configuration.named import named
from pointsman.edge.configuration.route_key import RouteKey
from pointsman.edge.configuration.routing import Routing
from pointsman.edge.configuration.secret import secret_of_environment
from pointsman.edge.configuration.tree import ConfigTree
from pointsman.edge.decisions.ring import MOST, MOST_BYTES
from pointsman.edge.decisions.sampling import Sampling
from pointsman.edge.prompts.hub_places import tokenizer_places
from pointsman.edge.prompts.tokenizer_files import TokenizerPlaces
from pointsman.edge.serving.failover import FailoverSettings
from pointsman.edge.serving.rollout_order import Orders, RolloutOrder
from pointsman.edge.serving.tenants.tenancy import TenancySettings
from pointsman.edge.serving.timeouts import Timeouts
from pointsman.edge.serving.tls import ListenTls, listen_tls
from pointsman.edge.serving.workers.settings import DiscoverySettings
from pointsman.edge.serving.workers.source import source_of
from pointsman.edge.traces.profile_file import load_profile
from pointsman.edge.wire.http1_server import ServerLimits
from pointsman.edge.wire.trust import Trust, Trusts


def _nowhere() -> TokenizerPlaces:
    """Directories that a configuration names are found, nothing else."""
    return TokenizerPlaces(Path(".pointsman") / "tokenizers", hub_url=None)


@dataclass(frozen=True, slots=True)
class DecisionLogSettings:
    """Where rows go, and how much of them is kept."""

    path: Path
    max_bytes: int
    keep: int
    sample: float = 1.0
    """Part of the requests that are written, 0 to 1; what went wrong is always written."""
    state: float = 0.0
    """Part of the lines that carry the fleet's state."""


@dataclass(frozen=True, slots=True)
class RingSettings:
    """What is kept of decisions in memory."""

    most: int = MOST
    """0: nothing."""
    most_bytes: int = MOST_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendSettings:
    """Everything has a default but the engines. Port 0 takes a free port."""

    sources: tuple[WorkerSource, ...] = ()
    discovery: DiscoverySettings = field(default_factory=DiscoverySettings)
    host: str = "127.0.0.1"
    port: int = 8080
    reuse_port: bool = False
    admin_host: str = "127.0.0.1"
    admin_port: int = 8081
    policy: str = "auto"
    rollout: RolloutOrder | None = None
    shadow: tuple[str, ...] = ()
    """Policies that decide without acting."""
    watchers: int = 1
    """Front ends that share the traffic, this one included; each judges a rollout by its own requests."""
    route_key: RouteKey | None = None
    text_block_bytes: int = 128
    prefix_ttl_s: float = 3600.0
    index_by_hash: bool = False
    tokenize: bool = True
    tokenizers: Mapping[str, str] = field(default_factory=dict)
    tokenizer_places: TokenizerPlaces = field(default_factory=_nowhere)
    heartbeat_s: float = 5.0
    health_check: bool = True
    health: HealthSettings = field(default_factory=HealthSettings)
    client_sockets: tuple[socket.socket, ...] = ()
    """To accept connections at, instead of `host` and `port`: somebody else listens there already."""
    admin_sockets: tuple[socket.socket, ...] = ()
    settle_s: float | None = None
    """What engines get to be asked first before the front end accepts connections; None: it does at once."""
    shutdown_grace_s: float = 600.0
    """What requests get to end when the front end stops or is replaced."""
    ready_lag_s: float = 0.0
    """How long it still takes requests then while it says that it is not ready."""
    drain_grace_s: float = 600.0
    """What requests at an engine that drains get to end."""
    drain_cut_after_s: float = 30.0
    """What moving them may take after that."""
    debug_headers: bool = False
    collect_queue_depth: bool = True
    collect_cache_tokens: bool = True
    collect_gpu_use: bool = True
    replicas: ReplicaSettings = field(default_factory=ReplicaSettings)
    guards: Guards = NO_GUARDS
    transfer: TransferRules = USUAL_RULES
    """When KV moves between engines."""
    link_priors: LinkPriors = USUAL_PRIORS
    """What is thought of links between machines before anything is seen of them."""
    measured_links: tuple[SavedLink, ...] = ()
    """What was."""
    slo_classes: Mapping[str, Slo] = field(default_factory=dict)
    default_slo_class: str | None = None
    failover: FailoverSettings = field(default_factory=FailoverSettings)
    timeouts: Timeouts = field(default_factory=lambda: Timeouts.of(ConfiguredTimeouts()))
    limits: ServerLimits = field(default_factory=ServerLimits)
    tenancy: TenancySettings = field(default_factory=TenancySettings)
    tls: ListenTls | None = None
    admin_tls: ListenTls | None = None
    admin_key: str | None = field(default=None, repr=False)
    trusts: Trusts = field(default_factory=Trusts)
    """How engines with https are checked."""
    decision_log: DecisionLogSettings | None = None
    """None: none is written."""
    ring: RingSettings = field(default_factory=RingSettings)
    step_priors: Mapping[str, StepCoefficients] = field(default_factory=dict)
    """Step times by names of the profiles that sources have."""
    seed: int | None = None
    """Of the policies' random numbers; None: another one each start."""

    @property
    def etcd_trusts(self) -> tuple[Trust, ...]:
        """How etcd is checked, for whatever asks it."""
        access = (self.discovery.etcd, None if self.replicas.etcd is None else self.replicas.etcd.access)
        return tuple(one.trust for one in access if one is not None and one.trust is not None)

    @classmethod
    def of(
        cls, tree: ConfigTree, environ: Mapping[str, str] | None = None, *, reuse_port: bool = False
    ) -> FrontendSettings:
        """From a validated configuration; `environ` holds the variables that `api_key_env` names.

        Raises ConfigError when a certificate can't be read or a variable is missing.
        """
        plane, routing = tree.control_plane, tree.routing
        return cls(
            sources=tuple(source_of(node, plane, environ or {}) for node in tree.execution_group.nodes),
            discovery=DiscoverySettings.of(tree, environ or {}),
            host=plane.listen_host,
            port=plane.listen_port,
            reuse_port=reuse_port,
            admin_host=plane.admin_host,
            admin_port=plane.admin_port,
            policy=routing.policy,
            rollout=_rollout(tree),
            shadow=routing.shadow,
            route_key=routing.route_key,
            text_block_bytes=routing.text_block_bytes,
            prefix_ttl_s=routing.prefix_ttl.s,
            index_by_hash=routing.index_by_hash,
            tokenize=routing.tokenize,
            tokenizers=routing.tokenizers,
            tokenizer_places=tokenizer_places(environ or {}),
            heartbeat_s=plane.heartbeat_interval.s,
            health_check=plane.health_check_enabled,
            health=_health(plane),
            shutdown_grace_s=plane.shutdown_grace.s,
            ready_lag_s=0.0 if plane.ready_lag is None else plane.ready_lag.s,
            drain_grace_s=plane.drain_grace.s,
            drain_cut_after_s=plane.drain_cut_after.s,
            debug_headers=plane.debug_headers,
            collect_queue_depth=tree.metrics.collect_queue_depth,
            collect_cache_tokens=tree.metrics.collect_kv_cache_miss,
            collect_gpu_use=tree.metrics.collect_gpu_utilization,
            replicas=ReplicaSettings.of(tree.replicas, tree.etcd, environ or {}),
            guards=routing.guards.of(),
            transfer=_transfer(routing),
            link_priors=link_priors(tree.links, plane.topology_levels),
            measured_links=_measured_links(tree),
            slo_classes={name: slo.of(name) for name, slo in routing.slo_classes.items()},
            default_slo_class=routing.default_slo_class,
            failover=FailoverSettings.of(tree.failover),
            timeouts=Timeouts.of(plane.timeouts),
            limits=_limits(tree),
            tenancy=TenancySettings.of(tree.auth, tree.tenants),
            tls=listen_tls(plane.tls),
            admin_tls=listen_tls(plane.admin_tls, "control-plane.admin_tls"),
            admin_key=_admin_key(tree.auth, environ or {}),
            trusts=Trusts(plane.engine_tls),
            decision_log=_decision_log(tree),
            ring=RingSettings(tree.decision_log.ring, tree.decision_log.ring_size.bytes),
            step_priors=_step_priors(tree.execution_group.nodes),
        )


def _measured_links(tree: ConfigTree) -> tuple[SavedLink, ...]:
    if tree.links.file is None:
        return ()
    with named("links.file"):
        return load_links(Path(tree.links.file)).links


def configured_orders(tree: ConfigTree) -> Orders:
    """Who shall decide, by the configuration."""
    return Orders(tree.routing.policy, _rollout(tree))


def _rollout(tree: ConfigTree) -> RolloutOrder | None:
    wanted = tree.routing.rollout
    if wanted is None:
        return None
    by = wanted.by or (By.REQUEST if tree.routing.route_key is None else By.SESSION)
    return RolloutOrder(wanted.policy, wanted.share.part, by, wanted.worse_by.part, wanted.auto_rollback)


def _transfer(routing: Routing) -> TransferRules:
    most = routing.kv_transfer_max_bytes
    return TransferRules(routing.kv_transfer, 0 if most is None else most.bytes, routing.fallback_to_local)


def sampling_of(log: DecisionLogSettings | None) -> Sampling:
    """What is written of decisions."""
    return Sampling() if log is None else Sampling(log.sample, log.state)


def _decision_log(tree: ConfigTree) -> DecisionLogSettings | None:
    log = tree.decision_log
    if log.path is None:
        return None
    return DecisionLogSettings(Path(log.path), log.max_size.bytes, log.keep, log.sample.part, log.state.part)


def _step_priors(nodes: Iterable[Node]) -> dict[str, StepCoefficients]:
    priors: dict[str, StepCoefficients] = {}
    for node in nodes:
        if node.profile is not None and node.profile not in priors:
            with named(f"execution-group.nodes: engine {node.engine_name}: profile"):
                priors[node.profile] = load_profile(node.profile).step
    return priors


def _health(plane: ControlPlane) -> HealthSettings:
    health = plane.health
    return HealthSettings(
        heartbeat_ms=plane.heartbeat_interval.ms,
        canary=plane.health_canary,
        canary_idle_ms=None if health.canary_idle is None else health.canary_idle.ms,
        canary_limit_ms=None if health.canary_limit is None else health.canary_limit.ms,
        outliers=health.outliers,
        most_out=health.most_out.part,
        failures=health.failures,
        failure_share=health.failure_share.part,
        cool_off_ms=health.cool_off.ms,
        most_cool_off_ms=health.most_cool_off.ms,
    )


def _admin_key(auth: Auth, environ: Mapping[str, str]) -> str | None:
    if auth.admin_key is not None:
        return auth.admin_key.reveal()
    if auth.admin_key_env is None:
        return None
    with named("auth.admin_key_env"):
        return secret_of_environment(auth.admin_key_env, environ, "admin_key_env").reveal()


def _limits(tree: ConfigTree) -> ServerLimits:
    limits, times = tree.control_plane.limits, tree.control_plane.timeouts
    return ServerLimits(
        max_head_bytes=limits.max_header_bytes.bytes,
        max_body_bytes=limits.max_body_bytes.bytes,
        max_bodies_bytes=limits.max_bodies_bytes.bytes,
        max_connections=limits.max_connections,
        head_timeout_s=times.client.s,
        body_timeout_s=times.client.s,
        write_timeout_s=times.client.s,
    )
