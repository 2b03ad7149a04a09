"""Topology: levels of closeness, near to far, each read from a node label."""

from __future__ import annotations

from dataclasses import dataclass

from pointsman.core.model.errors import PlacementError

NODE_LEVEL = "node"
"""The innermost level, always there: a node by itself."""
_STEP = 10
MOST_COST = 10**10
"""Of one domain: with what preferences cost, and 100,000 domains, sums are still whole numbers of 64 bits."""


@dataclass(frozen=True, slots=True)
class Level:
    """One level. Nodes with the same value of the label are close; a missing or empty value is no domain."""

    name: str
    label: str
    cost: int | None = None
    """What one domain more of this level costs a gang. None: ten times the next nearer level, the nearest 1."""

    def __post_init__(self) -> None:
        if not self.name or not self.label:
            raise PlacementError(f"level {self.name or self.label!r} needs a name and a node label")
        if self.name == NODE_LEVEL:
            raise PlacementError(f"level {NODE_LEVEL!r} is always there, as the innermost one; leave it out")
        if self.cost is not None and self.cost < 0:
            raise PlacementError(f"level {self.name}: cost is {self.cost}; 0 or more is expected")


@dataclass(frozen=True, slots=True)
class Topology:
    """Levels from near to far, such as nvswitch, rack, zone. Raises PlacementError for names or labels that are there
    twice, and for costs too large to be added up."""

    levels: tuple[Level, ...] = ()

    def __post_init__(self) -> None:
        for what in ("name", "label"):
            seen: set[str] = set()
            for level in self.levels:
                value = getattr(level, what)
                if value in seen:
                    raise PlacementError(f"two levels have the {what} {value!r}; each needs one of its own")
                seen.add(value)
        for name, cost in zip(self.names, self.costs, strict=True):
            if cost > MOST_COST:
                raise PlacementError(
                    f"level {name}: one domain more would cost {cost:,}, at most {MOST_COST:,} is expected; a level "
                    "without a cost costs ten times the one before: leave out levels, or give them costs"
                )

    @property
    def names(self) -> tuple[str, ...]:
        """All levels by name, near to far, `node` first."""
        return (NODE_LEVEL, *(level.name for level in self.levels))

    @property
    def costs(self) -> tuple[int, ...]:
        """What one domain more costs, in the order of `names`; nodes cost nothing."""
        found = [0]
        for level in self.levels:
            found.append(level.cost if level.cost is not None else max(1, found[-1] * _STEP))
        return tuple(found)

    def index(self, name: str) -> int:
        """Position in `names`. Raises PlacementError that names the levels there are."""
        try:
            return self.names.index(name)
        except ValueError:
            raise PlacementError(
                f"level {name!r} is not of this topology; one of {', '.join(self.names)} is expected"
            ) from None
