"""FleetTable: the fleet's numbers as one int64 table, a column a worker, so that a view is a single copy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pointsman.core.model.view import NOT_ZERO, Column

_FIRST_SLOTS = 16


class FleetTable:
    """Slots are handed out and taken back; `cells[column, slot]` is one number of one worker."""

    def __init__(self) -> None:
        self.cells: NDArray[np.int64] = np.zeros((len(Column), _FIRST_SLOTS), dtype=np.int64)
        self._free = list(range(_FIRST_SLOTS - 1, -1, -1))

    def take_slot(self) -> int:
        """A slot with the numbers of a worker of which nothing is known."""
        if not self._free:
            self._grow()
        slot = self._free.pop()
        self.cells[:, slot] = 0
        for column, value in NOT_ZERO.items():
            self.cells[column, slot] = value
        return slot

    def give_back(self, slot: int) -> None:
        """The slot may be handed out again."""
        self._free.append(slot)

    def _grow(self) -> None:
        old = self.cells.shape[1]
        self.cells = np.concatenate([self.cells, np.zeros_like(self.cells)], axis=1)
        self._free.extend(range(2 * old - 1, old - 1, -1))
