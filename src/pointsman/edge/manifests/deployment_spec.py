"""What a deployment file may say: one mapping a document, every key with what it means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from pointsman.edge.configuration.conflict import KeyConflictError
from pointsman.edge.configuration.duration import Duration
from pointsman.edge.manifests.quantity import Cpu, Gpus, Memory

MOST_PODS = 100_000
"""Of a deployment: no Kubernetes cluster runs many more."""
Effect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]


class Replicas(msgspec.Struct, frozen=True, kw_only=True):
    """How many replicas; a plain number stands for both."""

    min: Annotated[
        int, Meta(ge=0, le=100_000, description="The floor: without so many nothing of the deployment is placed.")
    ]
    max: Annotated[
        int, Meta(ge=1, le=100_000, description="Those above the floor are elastic: placed as far as there is room.")
    ]

    def __post_init__(self) -> None:
        if self.max < self.min:
            raise KeyConflictError("max", f"{self.max} is below min, {self.min}; raise it, or lower min")


class PodResources(msgspec.Struct, frozen=True, kw_only=True):
    """What one pod of the role asks for."""

    gpus: Annotated[Gpus, Meta(description="Whole GPUs, or a part of one below 1.")] = Gpus(0)
    cpu: Annotated[Cpu, Meta(description="CPUs.")] = Cpu(0)
    memory: Annotated[Memory, Meta(description="Main memory.")] = Memory(0)


class TolerationSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A taint that the role's pods do not mind; Kubernetes' rules."""

    key: Annotated[str, Meta(description="Of the taint; empty with `Exists`: all taints.")] = ""
    operator: Annotated[Literal["Equal", "Exists"], Meta(description="`Exists`: whatever the value.")] = "Equal"
    value: Annotated[str, Meta(description="Of the taint, with `Equal`.")] = ""
    effect: Annotated[Effect | None, Meta(description="Absent: every effect.")] = None

    def __post_init__(self) -> None:
        if not self.key and self.operator == "Equal":
            raise KeyConflictError("key", "is missing; name the taint's key, or say operator: Exists to tolerate all")
        if self.operator == "Exists" and self.value:
            raise KeyConflictError("value", "stands beside operator: Exists, which takes any; remove one of them")


class Closeness(msgspec.Struct, frozen=True, kw_only=True):
    """How close together the whole deployment has to be, by level of the topology."""

    required: Annotated[str | None, Meta(description="All pods in one domain of this level, or nothing is placed.")] = (
        None
    )
    preferred: Annotated[str | None, Meta(description="As few domains of this level as possible.")] = None


class RoleCloseness(msgspec.Struct, frozen=True, kw_only=True):
    """How close together the pods of a role have to be, and those of one replica."""

    required: Annotated[str | None, Meta(description="All pods of the role in one domain of this level.")] = None
    preferred: Annotated[str | None, Meta(description="As few domains of this level as possible for the role.")] = None
    replica_required: Annotated[
        str | None, Meta(description="All pods of one replica in one domain of this level; replicas may differ.")
    ] = None
    replica_preferred: Annotated[str | None, Meta(description="The same, given up where it can't be had.")] = None


class NearSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Roles that belong together, such as prefill near its decode."""

    roles: Annotated[tuple[str, ...], Meta(min_length=2, description="Two different roles or more.")]
    required: Annotated[str | None, Meta(description="All their pods in one domain of this level.")] = None
    preferred: Annotated[str | None, Meta(description="All their pods in as few domains of this level as can be.")] = (
        None
    )

    def __post_init__(self) -> None:
        if self.required is None and self.preferred is None:
            raise KeyConflictError("roles", "stand without a level; add required or preferred")
        if len(set(self.roles)) < len(self.roles):
            raise KeyConflictError("roles", "a role is there twice; name each once")


class RoleSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Equal replicas of one role."""

    replicas: Annotated[Replicas, Meta(description="`4`, or `{min: 2, max: 6}`.")]
    pods_per_replica: Annotated[
        int, Meta(ge=1, le=10_000, description="More than 1: an engine over several nodes.")
    ] = 1
    resources: Annotated[PodResources, Meta(description="What one pod asks for.")] = PodResources()
    stage: Annotated[
        Literal["prefill", "decode", "other"] | None,
        Meta(description="Between which roles KV flows; absent: by the role's name."),
    ] = None
    selector: Annotated[
        Mapping[str, tuple[str, ...]],
        Meta(description="Node label → value, list of values, or an empty list: it only has to be there."),
    ] = {}
    gpu_kinds: Annotated[tuple[str, ...], Meta(description="Kinds of GPU that will do; absent: any.")] = ()
    tolerations: Annotated[tuple[TolerationSpec, ...], Meta(description="Taints that the pods do not mind.")] = ()
    topology: Annotated[RoleCloseness, Meta(description="How close together its pods have to be.")] = RoleCloseness()


class DeploymentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment: one gang, placed whole or not at all."""

    name: Annotated[str, Meta(min_length=1, description="Its name, another one for each deployment.")]
    model: Annotated[str | None, Meta(description="What it serves; for people.")] = None
    queue: Annotated[str, Meta(min_length=1, description="Whose quota it counts against (`place --queues`).")] = (
        "default"
    )
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31, description="Of several, the higher one is placed first.")] = 0
    preemptible: Annotated[bool, Meta(description="Whether it may be moved or evicted for others.")] = True
    min_runtime: Annotated[Duration | None, Meta(description="Once placed, it is left alone for so long.")] = None
    topology: Annotated[Closeness, Meta(description="How close together all of it has to be.")] = Closeness()
    roles: Annotated[Mapping[str, RoleSpec], Meta(description="By name: prefill, decode, frontend, worker, …")]
    near: Annotated[tuple[NearSpec, ...], Meta(description="Roles that have to be close to one another.")] = ()

    def __post_init__(self) -> None:
        if not self.roles:
            raise KeyConflictError("roles", "is empty; name at least one role")
        pods = sum(role.replicas.max * role.pods_per_replica for role in self.roles.values())
        if pods > MOST_PODS:
            raise KeyConflictError(
                "roles", f"{pods:,} pods together with all elastic replicas; at most {MOST_PODS:,} are expected"
            )
        for number, near in enumerate(self.near):
            unknown = next((role for role in near.roles if role not in self.roles), None)
            if unknown is not None:
                known = ", ".join(self.roles)
                raise KeyConflictError(f"near[{number}].roles", f"there is no role {unknown!r}; known here: {known}")
