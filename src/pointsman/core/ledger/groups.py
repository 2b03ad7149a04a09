"""ModelGroups: which workers serve a model, as rows of the fleet's table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pointsman.core.ledger.entries import WorkerEntry
from pointsman.core.model.worker import Role, WorkerId


@dataclass(frozen=True, slots=True)
class ModelGroup:
    """The workers of one model, in the order in which views list them."""

    workers: tuple[WorkerId, ...]
    slots: NDArray[np.intp]
    row_of_slot: dict[int, int]
    any_queue_limit: bool
    any_cap: bool
    prefill_rows: NDArray[np.intp]
    """Workers that compute prompts only."""
    decode_rows: NDArray[np.intp]
    """Workers that only go on with what others began, but for whole requests."""
    adapter_entries: tuple[tuple[int, WorkerEntry], ...]
    """Workers for which the model is a LoRA adapter, with their rows."""


class ModelGroups:
    """Groups by model name, made when first asked for and forgotten when the membership changes."""

    def __init__(self) -> None:
        self._groups: dict[str, ModelGroup] = {}

    def forget(self) -> None:
        """The membership changed."""
        self._groups.clear()

    def of(self, model: str, entries: Iterable[WorkerEntry]) -> ModelGroup:
        """The group of a model out of all live workers; empty when nobody serves it."""
        group = self._groups.get(model)
        if group is None:
            group = _make_group(model, [entry for entry in entries if model in entry.spec.models])
            if len(group.workers):
                self._groups[model] = group
        return group


def _make_group(model: str, entries: list[WorkerEntry]) -> ModelGroup:
    return ModelGroup(
        workers=tuple(entry.id for entry in entries),
        slots=np.array([entry.slot for entry in entries], dtype=np.intp),
        row_of_slot={entry.slot: row for row, entry in enumerate(entries)},
        any_queue_limit=any(entry.spec.queue_depth_threshold is not None for entry in entries),
        any_cap=any(entry.spec.max_in_flight is not None for entry in entries),
        prefill_rows=_rows(entries, Role.PREFILL),
        decode_rows=_rows(entries, Role.DECODE),
        adapter_entries=tuple((row, entry) for row, entry in enumerate(entries) if model in entry.spec.adapters),
    )


def _rows(entries: list[WorkerEntry], role: Role) -> NDArray[np.intp]:
    return np.array([row for row, entry in enumerate(entries) if entry.spec.role is role], dtype=np.intp)
