"""Section `execution-group`: the engines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from pointsman.core.model.transfer import TransferMode
from pointsman.core.model.worker import Role
from pointsman.edge.configuration.conflict import KeyConflictError
from pointsman.edge.configuration.engine_url import EngineUrl
from pointsman.edge.configuration.gpu_name import GpuName
from pointsman.edge.configuration.metrics_url import MetricsUrl
from pointsman.edge.configuration.secret import Secret
from pointsman.edge.configuration.tls import EngineTls

EngineKind = Literal["vllm", "sglang", "trtllm", "llamacpp", "openai"]
CacheTransport = Literal["nixl", "mooncake", "shared-storage", "shm", "tcp"]
ModelName = Annotated[str, Meta(min_length=1)]
_MOST, _MOST_TOKENS = 10**9, 10**12
"""Sums of such numbers are kept in 64 bits."""


class KvEventEndpoints(msgspec.Struct, frozen=True, kw_only=True):
    """Where an engine's KV events are, if it does not tell so itself or what it tells does not hold here."""

    endpoint: Annotated[
        str | None,
        Meta(
            min_length=1,
            description="ZMQ endpoint of its first rank, `tcp://host:port` or `ipc://path`; others add to the port.",
        ),
    ] = None
    replay_endpoint: Annotated[
        str | None, Meta(min_length=1, description="ZMQ endpoint at which missed events are asked for.")
    ] = None
    topic: Annotated[str | None, Meta(description="Topic of its events.")] = None
    bind: Annotated[
        bool,
        Meta(description="The engine connects to `endpoint`, which is to be opened here; else it is connected to."),
    ] = False

    def __post_init__(self) -> None:
        if self.bind and self.endpoint is None:
            raise KeyConflictError("bind", "endpoint is missing: name the address to open, such as tcp://*:5557")


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One engine. All but the URL is learned from the engine, unless it is said here."""

    url: Annotated[EngineUrl, Meta(description="Where it listens: `http://host:port` or `https://host:port`.")]
    name: Annotated[
        str | None,
        Meta(
            min_length=1,
            max_length=128,
            pattern="^[A-Za-z0-9._:\\[\\]-]+$",
            description="Name in metrics, logs and headers; default `host:port`.",
        ),
    ] = None
    kind: Annotated[EngineKind | None, Meta(description="Which engine it is; default: found out by asking it.")] = None
    node_role: Annotated[
        Role,
        Meta(
            description="Which stages it computes: prompts for others only (`prefill`), whole requests and what others "
            "began but no prompt for another one (`decode`), or all of it."
        ),
    ] = Role.BOTH
    kv_cache_transfer: Annotated[
        TransferMode,
        Meta(description="`off`: it is never part of a transfer of KV; else it is as `routing.kv_transfer` says."),
    ] = TransferMode.AUTO
    cache_transport: Annotated[
        CacheTransport | None,
        Meta(description="By what it passes KV on, where the engine does not tell; default: what the engine tells."),
    ] = None
    gpu_count: Annotated[int, Meta(ge=0, le=_MOST, description="GPUs that it uses; 0 on a CPU.")] = 1
    max_batch_size: Annotated[
        int | None,
        Meta(
            ge=1,
            le=_MOST,
            description="Sequences that it computes at once: `cost` reckons with the wait of those that come when so "
            "many are there. Default: what the engine tells; vLLM does not tell.",
        ),
    ] = None
    queue_depth_threshold: Annotated[
        int | None, Meta(ge=1, le=_MOST, description="With that many requests waiting at the engine it gets no more.")
    ] = None
    max_in_flight: Annotated[
        int | None,
        Meta(
            ge=1,
            le=_MOST,
            description="Most of our sequences at once at each of its ranks: with as many it gets no more. A request "
            "for n answers is n of them.",
        ),
    ] = None
    weight: Annotated[
        float,
        Meta(ge=0.001, le=1000, description="How much it should get: with 2 twice as much as an equal one with 1."),
    ] = 1.0
    topology: Annotated[
        Mapping[str, str],
        Meta(description="Where it is: a name for each of `control-plane.topology_levels`, as far as known."),
    ] = {}
    gpu_metrics_url: Annotated[
        MetricsUrl | None,
        Meta(
            description="Page that tells how busy its GPUs are, of dcgm-exporter or nvidia_gpu_exporter; read with "
            "each probe."
        ),
    ] = None
    gpus: Annotated[
        tuple[GpuName, ...] | None,
        Meta(min_length=1, description="Those of the page that are its own: numbers or UUIDs; default: all."),
    ] = None
    models: Annotated[
        tuple[ModelName, ...] | None,
        Meta(min_length=1, description="Names of models to offer, instead of those that the engine lists."),
    ] = None
    kv_capacity_tokens: Annotated[
        int | None, Meta(ge=1, le=_MOST_TOKENS, description="Tokens that its KV cache holds.")
    ] = None
    profile: Annotated[
        str | None,
        Meta(
            min_length=1,
            description="Profile whose step times it is thought to have until traffic tells: a name such as "
            "`h100/llama-8b`, `estimate:…` or a file that `pointsman calibrate` wrote; default: learned from nothing.",
        ),
    ] = None
    kv_events: Annotated[
        KvEventEndpoints | None, Meta(description="Where its KV events are; default: what the engine says.")
    ] = None
    tls: Annotated[
        EngineTls | None, Meta(description="Instead of `control-plane.engine_tls`, all of it, for this engine.")
    ] = None
    api_key_env: Annotated[
        str | None, Meta(min_length=1, description="Environment variable that holds the key this engine wants.")
    ] = None
    api_key: Annotated[
        Secret | None, Meta(description="The key itself; `api_key_env` keeps it out of the file. Never printed.")
    ] = None

    def __post_init__(self) -> None:
        if self.api_key is not None and self.api_key_env is not None:
            raise KeyConflictError("api_key", "api_key_env is given too; keep one of them")
        if self.gpus is not None and self.gpu_metrics_url is None:
            raise KeyConflictError("gpus", "gpu_metrics_url is missing: name the page that tells of these GPUs")

    @property
    def engine_name(self) -> str:
        """The name, or `host:port`."""
        return self.name if self.name is not None else self.url.host_and_port


class ExecutionGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The engines."""

    nodes: Annotated[tuple[Node, ...], Meta(description="One entry an engine.")] = ()

    def __post_init__(self) -> None:
        first_with_url: dict[str, int] = {}
        first_with_name: dict[str, int] = {}
        for index, node in enumerate(self.nodes):
            same_url = first_with_url.setdefault(node.url, index)
            if same_url != index:
                raise KeyConflictError(
                    f"nodes[{index}].url", f"is the URL of nodes[{same_url}] too; name each engine once"
                )
            same_name = first_with_name.setdefault(node.engine_name, index)
            if same_name != index:
                raise KeyConflictError(f"nodes[{index}].name", f"nodes[{same_name}] is called {node.engine_name!r} too")

    def without_decode(self) -> tuple[int, str] | None:
        """The first node that only prefills and that nobody here decodes for, and what nobody decodes; None: fine.

        Nodes of which nobody says what they serve may serve anything.
        """
        decoding = [node for node in self.nodes if node.node_role is not Role.PREFILL]
        if any(node.models is None for node in decoding):
            return None
        decoded = {model for node in decoding for model in node.models or ()}
        for index, node in enumerate(self.nodes):
            if node.node_role is not Role.PREFILL:
                continue
            alone = [model for model in node.models or () if model not in decoded]
            if alone or not decoding:
                return index, f"model {alone[0]}" if alone else "what it serves"
        return None
