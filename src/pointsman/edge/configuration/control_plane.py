"""Section `control-plane`: where the front end listens, its limits and time-outs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from pointsman.edge.configuration.conflict import KeyConflictError
from pointsman.edge.configuration.duration import Duration
from pointsman.edge.configuration.health import Health
from pointsman.edge.configuration.size import Size
from pointsman.edge.configuration.tls import EngineTls, Tls


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """How long one request may take. Generous: they are there to end what hangs, not what is slow."""

    connect: Annotated[Duration, Meta(description="To connect to an engine.")] = Duration(5)
    first_byte: Annotated[
        Duration, Meta(description="From the request's dispatch to the first byte of the engine's answer.")
    ] = Duration(600)
    idle: Annotated[Duration, Meta(description="Between two bytes of an answer.")] = Duration(300)
    total: Annotated[
        Duration | None, Meta(description="From the request's arrival to the end of its answer; `none`: no limit.")
    ] = None
    client: Annotated[
        Duration, Meta(description="For a client to send its request, and to take bytes that wait for it.")
    ] = Duration(60)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How large a request may be, and all of them together."""

    max_body_bytes: Annotated[Size, Meta(description="Longest body; a longer one gets 413.")] = Size(64 * 2**20)
    max_header_bytes: Annotated[Size, Meta(description="All header lines together; more gets 431.")] = Size(64 * 2**10)
    max_bodies_bytes: Annotated[
        Size,
        Meta(description="Bodies of all requests that are being read or answered, together; what exceeds it gets 503."),
    ] = Size(2**30)
    max_connections: Annotated[
        int | None,
        Meta(ge=1, description="Client connections at once; more get 503. `none`: as many as descriptors allow."),
    ] = None


class ControlPlane(msgspec.Struct, frozen=True, kw_only=True):
    """Where the front end listens, its limits and time-outs."""

    listen_host: Annotated[
        str, Meta(min_length=1, description="Address to listen at; `0.0.0.0` lets other machines in.")
    ] = "127.0.0.1"
    listen_port: Annotated[int, Meta(ge=0, le=65535, description="Port for clients; 0 takes a free one.")] = 8080
    admin_host: Annotated[
        str,
        Meta(
            min_length=1,
            description="Address of the admin port; beyond loopback it needs a key (`auth`).",
        ),
    ] = "127.0.0.1"
    admin_port: Annotated[
        int, Meta(ge=0, le=65535, description="Port for metrics, status and control; 0 takes a free one.")
    ] = 8081
    heartbeat_interval: Annotated[Duration, Meta(description="Between two probes of an engine.")] = Duration(5)
    health_check_enabled: Annotated[
        bool, Meta(description="Probe engines, and send nothing to those that don't answer.")
    ] = True
    health_canary: Annotated[
        bool,
        Meta(
            description="Ask engines that are idle or in doubt for two tokens now and then, to see whether they flow. "
            "Never those of kind `openai`."
        ),
    ] = True
    health: Annotated[Health, Meta(description="What speaks against an engine, and for how long.")] = Health()
    shutdown_grace: Annotated[
        Duration,
        Meta(
            description="What requests in flight get to finish when the front end stops or is replaced, from the "
            "signal on. Whatever kills processes (systemd, Kubernetes) has to wait longer."
        ),
    ] = Duration(600)
    ready_lag: Annotated[
        Duration | None,
        Meta(
            description="How long a front end that stops still takes requests while `/ready` says 503, so that load "
            "balancers see it first; `none`: it refuses them at once."
        ),
    ] = None
    drain_grace: Annotated[
        Duration,
        Meta(description="What requests at an engine that drains get to finish before they go on elsewhere."),
    ] = Duration(600)
    drain_cut_after: Annotated[
        Duration,
        Meta(description="What going on elsewhere may take after that; then the rest ends with an error."),
    ] = Duration(30)
    debug_headers: Annotated[
        bool,
        Meta(
            description="Honour `x-pointsman-explain`, `x-pointsman-worker` and `x-pointsman-prefill-worker` of any "
            "client."
        ),
    ] = False
    timeouts: Annotated[Timeouts, Meta(description="How long one request may take.")] = Timeouts()
    limits: Annotated[Limits, Meta(description="How large a request may be, and all of them together.")] = Limits()
    tls: Annotated[Tls | None, Meta(description="Certificate to listen with; absent: plain HTTP.")] = None
    admin_tls: Annotated[Tls | None, Meta(description="Certificate of the admin port; absent: plain HTTP.")] = None
    engine_tls: Annotated[
        EngineTls | None, Meta(description="How engines with `https://` are checked; absent: the system's authorities.")
    ] = None

    topology: Annotated[
        Mapping[str, str],
        Meta(
            description="Where the front end is: a name for each of `topology_levels`, such as `{zone: a, rack: r1}`."
        ),
    ] = {}
    topology_levels: Annotated[
        tuple[str, ...], Meta(description="Levels of the topology from near to far, such as `[host, rack, zone]`.")
    ] = ()

    def __post_init__(self) -> None:
        if self.listen_port == self.admin_port != 0 and self.listen_host == self.admin_host:
            raise KeyConflictError("admin_port", f"{self.admin_port} is listen_port too; choose another one")
        if self.limits.max_bodies_bytes < self.limits.max_body_bytes:
            raise KeyConflictError(
                "limits.max_bodies_bytes",
                f"{self.limits.max_bodies_bytes} is less than max_body_bytes, {self.limits.max_body_bytes}: a body of "
                "that size could never be taken; raise it or lower max_body_bytes",
            )
        if self.ready_lag is not None and self.ready_lag > self.shutdown_grace:
            raise KeyConflictError(
                "ready_lag",
                f"{self.ready_lag} is longer than shutdown_grace, {self.shutdown_grace}: requests taken towards its "
                "end would be cut at once; lengthen shutdown_grace or shorten ready_lag",
            )
        for i, level in enumerate(self.topology_levels):
            if level in self.topology_levels[:i]:
                raise KeyConflictError(f"topology_levels[{i}]", f"{level} is named twice")
        for level in self.topology:
            if level not in self.topology_levels:
                raise KeyConflictError(f"topology.{level}", no_such_level(level, self.topology_levels))


def no_such_level(level: str, levels: Sequence[str]) -> str:
    """What is wrong with a place at a level that nobody named."""
    known = f"these are {', '.join(levels)}" if levels else "there are none; name them there, from near to far"
    return f"{level} is none of control-plane.topology_levels; {known}"
