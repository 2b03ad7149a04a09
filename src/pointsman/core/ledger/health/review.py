"""Review: who is used all the same, since too many others are left out or asked for a pause."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pointsman.core.ledger.entries import WorkerEntry
from pointsman.core.ledger.health.quota import allowed_out, kept_in
from pointsman.core.model.worker import WorkerId

_Name = tuple[str, str]
"""Model and role."""


@dataclass(frozen=True, slots=True)
class _Stand:
    """What counts here of one worker."""

    usable: bool
    """It could be used if traffic said nothing against it."""
    left_out: bool
    paused: bool
    groups: tuple[_Name, ...]


@dataclass(slots=True)
class _Group:
    """Workers that stand in for each other, and how many of them stand how."""

    usable: dict[WorkerId, None] = field(default_factory=dict)
    out: int = 0
    paused: int = 0
    """Of those that are not out."""
    overruled: bool = False
    """Some of them are used all the same."""

    def count(self, worker: WorkerId, stand: _Stand, by: int) -> None:
        """One more, or one less."""
        if not stand.usable:
            return
        if by > 0:
            self.usable[worker] = None
        else:
            self.usable.pop(worker, None)
        self.out += by * stand.left_out
        self.paused += by * (stand.paused and not stand.left_out)

    def in_question(self, most_out: float) -> bool:
        """True if somebody has to be used all the same, or need not any more."""
        usable = len(self.usable)
        return self.overruled or self.out > allowed_out(usable, most_out) or 0 < self.paused == usable - self.out


class Review:
    """Looks over all workers, but only when something changed that counts here."""

    def __init__(self, entries: Mapping[WorkerId, WorkerEntry], write: Callable[[WorkerEntry], None]) -> None:
        self._entries = entries
        self._write = write
        self._stands: dict[WorkerId, _Stand] = {}
        self._groups: dict[_Name, _Group] = {}
        self._troubled: set[WorkerId] = set()
        """Left out, paused or kept."""

    def note(self, entry: WorkerEntry, most_out: float) -> bool:
        """Something of a worker's health, models or drain changed, perhaps. True if it takes a look at others."""
        health = entry.health
        usable = health.usable_by_probes and entry.draining is None
        groups = tuple((model, str(entry.spec.role)) for model in entry.spec.models)
        stand = _Stand(usable, health.standing.left_out, health.paused, groups)
        before = self._stands.get(entry.id)
        if before == stand:
            return False
        if stand.left_out or stand.paused or health.kept:
            self._troubled.add(entry.id)
        touched = self._count(entry.id, before, -1) + self._count(entry.id, stand, 1)
        self._stands[entry.id] = stand
        return any(group.in_question(most_out) for group in touched)

    def changed(self, entry: WorkerEntry, most_out: float, at_ms: float) -> None:
        """The same, with the look."""
        if self.note(entry, most_out):
            self.look(most_out, at_ms)

    def left(self, worker: WorkerId, most_out: float, at_ms: float) -> None:
        """It is gone."""
        touched = self._count(worker, self._stands.pop(worker, None), -1)
        self._troubled.discard(worker)
        if any(group.in_question(most_out) for group in touched):
            self.look(most_out, at_ms)
        self._groups = {name: group for name, group in self._groups.items() if group.usable}

    def look(self, most_out: float, at_ms: float) -> None:
        """Never more than a share of a model's workers is left out, and one always stays."""
        groups = {name: list(group.usable) for name, group in self._groups.items()}
        troubled = [self._entries[worker] for worker in sorted(self._troubled) if worker in self._entries]
        out = [(e.health.standing.since_out_ms, e.id) for e in troubled if e.health.standing.left_out]
        kept = kept_in(groups, out, most_out)
        lifted = self._lifted({worker for _, worker in out} - kept)
        for group in self._groups.values():
            group.overruled = False
        for entry in troubled:
            self._rule(entry, entry.id in kept, entry.health.paused and entry.id in lifted, at_ms)
        self._troubled = {e.id for e in troubled if e.health.standing.left_out or e.health.paused or e.health.kept}

    def _rule(self, entry: WorkerEntry, kept: bool, lifted: bool, at_ms: float) -> None:
        """Whether one is used all the same."""
        health = entry.health
        if kept or lifted:
            for name in self._stands[entry.id].groups:
                if name in self._groups:
                    self._groups[name].overruled = True
        if kept is not health.kept or lifted is not health.pause_lifted:
            health.set_kept(kept, at_ms)
            health.pause_lifted = lifted
            self._write(entry)

    def _lifted(self, out: set[WorkerId]) -> set[WorkerId]:
        """Where all that are left asked for a pause, it is not kept: to be refused there costs less than not to ask."""
        lifted: set[WorkerId] = set()
        for group in self._groups.values():
            if all(self._entries[worker].health.paused for worker in group.usable if worker not in out):
                lifted.update(worker for worker in group.usable if worker not in out)
        return lifted

    def _count(self, worker: WorkerId, stand: _Stand | None, by: int) -> list[_Group]:
        if stand is None:
            return []
        touched = [self._groups.setdefault(name, _Group()) for name in stand.groups]
        for group in touched:
            group.count(worker, stand, by)
        return touched
