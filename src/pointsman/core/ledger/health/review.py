"""Review: who is used all the same, since too many others are left out or asked for a pause."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pointsman.core.ledger.entries import WorkerEntry
from pointsman.core.ledger.health.quota import kept_in
from pointsman.core.model.worker import WorkerId

_Key = tuple[bool, bool, bool, tuple[str, ...], str]
_Groups = Mapping[tuple[str, str], list[WorkerId]]


class Review:
    """Looks over all workers, but only when something changed that counts here."""

    def __init__(self, entries: Mapping[WorkerId, WorkerEntry], write: Callable[[WorkerEntry], None]) -> None:
        self._entries = entries
        self._write = write
        self._keys: dict[WorkerId, _Key] = {}
        self._troubled: set[WorkerId] = set()
        """Left out, paused or kept."""

    def changed(self, entry: WorkerEntry, most_out: float, at_ms: float) -> None:
        """Something of a worker's health, models or drain changed, perhaps."""
        health = entry.health
        key = (
            health.usable_by_probes and entry.draining is None,
            health.standing.left_out,
            health.paused,
            entry.spec.models,
            str(entry.spec.role),
        )
        if self._keys.get(entry.id) == key:
            return
        self._keys[entry.id] = key
        if health.standing.left_out or health.paused or health.kept:
            self._troubled.add(entry.id)
        if self._troubled:
            self.look(most_out, at_ms)

    def left(self, worker: WorkerId, most_out: float, at_ms: float) -> None:
        """It is gone."""
        self._keys.pop(worker, None)
        self._troubled.discard(worker)
        if self._troubled:
            self.look(most_out, at_ms)

    def look(self, most_out: float, at_ms: float) -> None:
        """Never more than a share of a model's workers is left out, and one always stays."""
        groups: dict[tuple[str, str], list[WorkerId]] = {}
        for entry in self._entries.values():
            if entry.health.usable_by_probes and entry.draining is None:
                for model in entry.spec.models:
                    groups.setdefault((model, entry.spec.role), []).append(entry.id)
        troubled = [self._entries[worker] for worker in sorted(self._troubled) if worker in self._entries]
        out = [(e.health.standing.since_out_ms, e.id) for e in troubled if e.health.standing.left_out]
        kept = kept_in(groups, out, most_out)
        lifted = self._lifted(groups, {worker for _, worker in out} - kept)
        for entry in troubled:
            health = entry.health
            health.set_kept(entry.id in kept, at_ms)
            health.pause_lifted = health.paused and entry.id in lifted
            self._write(entry)
        self._troubled = {e.id for e in troubled if e.health.standing.left_out or e.health.paused or e.health.kept}

    def _lifted(self, groups: _Groups, out: set[WorkerId]) -> set[WorkerId]:
        """Where all that are left asked for a pause, it is not kept: to be refused there costs less than not to ask."""
        lifted: set[WorkerId] = set()
        for workers in groups.values():
            left = [worker for worker in workers if worker not in out]
            if all(self._entries[worker].health.paused for worker in left):
                lifted.update(left)
        return lifted
