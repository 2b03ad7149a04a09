"""Constraints: the required closeness of a gang as a list, each to be loosened by itself, to see what would help."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pointsman.core.placement.attempt import Loosened
from pointsman.core.placement.gang import Gang, Scope


@dataclass(frozen=True, slots=True)
class Constraint:
    """One required constraint, over whole roles or within each replica of a role."""

    origin: str
    """The field that says so."""
    roles: frozenset[str]
    level: str
    within_replica: bool = False

    def __str__(self) -> str:
        return f"{self.origin}: {self.level}"


def constraints_of(gang: Gang) -> tuple[Constraint, ...]:
    """All that is required of where a gang's pods are to each other."""
    found = [Constraint(scope.origin, scope.roles, scope.level) for scope in gang.scopes() if scope.required]
    found += [
        Constraint(f"{group.name}.replica_required", frozenset({group.name}), group.replica_required, True)
        for group in gang.groups
        if group.replica_required is not None
    ]
    return tuple(found)


def loosened(constraints: Iterable[Constraint]) -> Loosened:
    """Only these constraints, whatever the gang says; its preferences are left out."""
    constraints = tuple(constraints)
    return Loosened(
        tuple(Scope(each.roles, each.level, True, each.origin) for each in constraints if not each.within_replica),
        {role: each.level for each in constraints if each.within_replica for role in each.roles},
    )


def at_level(constraint: Constraint, level: str) -> Constraint:
    """The same at another level."""
    return replace(constraint, level=level)
