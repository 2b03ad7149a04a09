"""Misfits: kinds of gangs that can never be placed, found before hours of simulation show it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from pointsman.app.placements.simulation.demand import Kind
from pointsman.core.placement.plan import Unplaced
from pointsman.core.placement.queues.tree import QueueTree
from pointsman.core.placement.queues.usage import Usage, firm_part, floor_of
from pointsman.core.placement.solver import place
from pointsman.core.placement.state import ClusterState

_BUDGET_S = 2.0


def misfits(
    state: ClusterState, kinds: Sequence[Kind], tree: QueueTree, queues: Sequence[str], clock_s: Callable[[], float]
) -> Iterator[str]:
    """For people: each kind that does not fit while no other gang is there, and each queue that may not have it. What
    could not be proved in time is not said."""
    nobody = Usage.of(tree, ())
    for kind in kinds:
        name = kind.gang.name
        found = place(state, kind.gang, budget_s=_BUDGET_S, clock_s=clock_s, elastic=False)
        if isinstance(found, Unplaced):
            if found.proved:
                yield f"{name} does not fit even while nothing else is placed, so it never is: {found.text}"
            continue
        refusals = {
            queue: nobody.refusal(replace(kind.gang, queue=queue), floor_of(kind.gang), firm_part(kind.gang))
            for queue in ((kind.queue,) if kind.queue else queues)
        }
        refused = [queue for queue, refusal in refusals.items() if refusal is not None]
        if refused:
            others = f" (nor may {', '.join(refused[1:4])}{', …' if len(refused) > 4 else ''})" if refused[1:] else ""
            yield f"queue {refused[0]} may never have {name}{others}: {refusals[refused[0]]}"
