"""Gang: a deployment that is placed whole or not at all, made of role groups and constraints of closeness."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from pointsman.core.model.errors import PlacementError
from pointsman.core.placement.cluster import Toleration
from pointsman.core.placement.resources import NOTHING, Resources

PREFILL = "prefill"
DECODE = "decode"


@dataclass(frozen=True, slots=True)
class RoleGroup:
    """Equal replicas of one role: `min_replicas` of them are the floor that the gang needs, those up to `max_replicas`
    are elastic. A replica is `pods_per_replica` equal pods (more than one: an engine over several nodes)."""

    name: str
    min_replicas: int
    max_replicas: int
    requests: Resources = NOTHING
    """Of one pod."""
    pods_per_replica: int = 1
    stage: str = ""
    """`prefill`, `decode`, or anything else for roles that KV does not flow between."""
    selector: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Label of the node → values that will do; no values: it only has to be there."""
    gpu_kinds: tuple[str, ...] = ()
    """Empty: any."""
    tolerations: tuple[Toleration, ...] = ()
    required: str | None = None
    """Level: all pods of the role must be in one domain of it."""
    preferred: str | None = None
    """Level: as few domains of it as possible for the role."""
    replica_required: str | None = None
    """Level: all pods of a replica must be in one domain of it; different replicas may be in different ones."""
    replica_preferred: str | None = None
    """Level: the same, but given up for the role when not all replicas can have it."""

    def __post_init__(self) -> None:
        if not self.name:
            raise PlacementError("a role has no name")
        fault = self._fault()
        if fault:
            raise PlacementError(f"role {self.name}: {fault}")

    def _fault(self) -> str | None:
        if self.min_replicas < 0:
            return f"min_replicas is {self.min_replicas}; 0 or more is expected"
        if self.max_replicas < max(self.min_replicas, 1):
            return (
                f"max_replicas is {self.max_replicas}; at least {max(self.min_replicas, 1)} is expected "
                f"(min_replicas is {self.min_replicas})"
            )
        if self.pods_per_replica < 1:
            return f"pods_per_replica is {self.pods_per_replica}; 1 or more is expected"
        if not self.requests.fits_devices:
            return (
                f"a pod asks for {self.requests.gpu_milli} thousandths of a GPU; "
                "below 1000 (a part of one device) or a multiple of 1000 is expected"
            )
        return None


@dataclass(frozen=True, slots=True)
class Near:
    """All pods of these roles together in one domain of a level (required), or in as few as possible (preferred)."""

    roles: tuple[str, ...]
    level: str
    required: bool = True


@dataclass(frozen=True, slots=True)
class Scope:
    """One constraint of closeness, whatever it came from: the pods of `roles` in one domain of `level`."""

    roles: frozenset[str]
    level: str
    required: bool
    origin: str
    """The field that says so, for people: `required`, `prefill.required`, `near prefill, decode`."""


@dataclass(frozen=True)
class Gang:
    """A deployment. Raises PlacementError that names the role or constraint that can't be."""

    name: str
    groups: tuple[RoleGroup, ...]
    near: tuple[Near, ...] = ()
    required: str | None = None
    """Level: the whole gang must be in one domain of it."""
    preferred: str | None = None
    queue: str = "default"
    priority: int = 0
    """More goes first."""
    preemptible: bool = True
    min_runtime_s: float = 0.0
    """Once placed, it is left alone for so long."""
    submitted_at_s: float = 0.0

    def __post_init__(self) -> None:
        fault = self._fault()
        if fault:
            raise PlacementError(f"gang {self.name or '(without a name)'}: {fault}")

    def _fault(self) -> str | None:
        if not self.name:
            return "a name is expected"
        if not self.groups:
            return "it has no role groups; at least one is expected"
        names = [group.name for group in self.groups]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice:
            return f"role {twice} is there twice"
        for near in self.near:
            unknown = next((role for role in near.roles if role not in names), None)
            if unknown:
                return f"near names the role {unknown!r}; one of {', '.join(names)} is expected"
            if len(set(near.roles)) < 2:
                return f"near {', '.join(near.roles)}: two different roles or more are expected"
        if self.min_runtime_s < 0:
            return f"min_runtime_s is {self.min_runtime_s}; 0 or more is expected"
        return None

    def group(self, name: str) -> RoleGroup:
        """The role group of that name. Raises PlacementError if there is none."""
        for group in self.groups:
            if group.name == name:
                return group
        raise PlacementError(f"gang {self.name}: no role {name!r}; it has {', '.join(g.name for g in self.groups)}")

    def scopes(self) -> Iterator[Scope]:
        """All constraints of closeness over whole roles (those within replicas are the role group's)."""
        everybody = frozenset(group.name for group in self.groups)
        for level, required in ((self.required, True), (self.preferred, False)):
            if level is not None:
                yield Scope(everybody, level, required, "required" if required else "preferred")
        for group in self.groups:
            for level, required in ((group.required, True), (group.preferred, False)):
                if level is not None:
                    field_name = "required" if required else "preferred"
                    yield Scope(frozenset({group.name}), level, required, f"{group.name}.{field_name}")
        for near in self.near:
            yield Scope(frozenset(near.roles), near.level, near.required, f"near {', '.join(near.roles)}")

    @cached_property
    def floor(self) -> Resources:
        """What all its floors ask for together."""
        return self._together({group.name: group.min_replicas for group in self.groups})

    @cached_property
    def wish(self) -> Resources:
        """What it asks for with all its elastic replicas."""
        return self._together({group.name: group.max_replicas for group in self.groups})

    @cached_property
    def shape(self) -> str:
        """The same for gangs that fit the same nodes: roles, and what is required of their closeness."""
        return repr((self.groups, self.near, self.required))

    def _together(self, replicas: Mapping[str, int]) -> Resources:
        total = NOTHING
        for group in self.groups:
            total = total + group.requests.times(group.pods_per_replica * replicas[group.name])
        return total
