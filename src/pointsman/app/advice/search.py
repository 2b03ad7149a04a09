"""Search for the hardest rung of a ladder that still holds, where each easier one is taken to hold too."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Search:
    """Rungs are numbered from 0, the easiest. Ask `next_rung`, try it, `tell`; None: it is found."""

    rungs: int
    start: int
    """Where the answer is thought to be."""
    held: int = -1
    """The hardest that held; -1: none yet."""
    failed: int = -1
    """The easiest that did not, beyond `held`; -1: none yet."""
    _stride: int = 1

    def next_rung(self) -> int | None:
        """What to try next: away from the start in strides that double, then halfway between."""
        if self.held < 0 and self.failed < 0:
            return min(max(self.start, 0), self.rungs - 1)
        if self.failed < 0:
            return None if self.held == self.rungs - 1 else min(self.held + self._stride, self.rungs - 1)
        if self.held < 0:
            return None if self.failed == 0 else max(self.failed - self._stride, 0)
        return None if self.failed == self.held + 1 else (self.held + self.failed) // 2

    def tell(self, rung: int, held: bool) -> None:
        """How a rung did."""
        if self.held >= 0 or self.failed >= 0:
            self._stride *= 2
        if held:
            self.held = max(self.held, rung)
            if 0 <= self.failed <= self.held:
                self.failed = -1
        else:
            self.failed = rung if self.failed < 0 else min(self.failed, rung)

    @property
    def found(self) -> bool:
        """Nothing is left to try."""
        return self.next_rung() is None
