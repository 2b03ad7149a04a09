"""Bucket: a limit of so much a minute, and how much of it may be saved up."""

from __future__ import annotations

_MINUTE_MS = 60_000.0
_ROUNDING = 1e-6
"""Of an amount: what a wait of exactly the right length may miss by floating point."""


class Bucket:
    """Fills at `per_minute` up to `capacity`; whoever takes more than there is leaves a debt that fills up first.

    Time is given with each call and never runs back. In any window nobody gets more than `capacity` and what flows in
    during it, and one amount larger than `capacity`, which passes when the bucket is full: it would never pass else.
    """

    __slots__ = ("_at_ms", "_level", "capacity", "per_minute", "per_ms")

    def __init__(self, per_minute: float, saved_s: float, now_ms: float) -> None:
        """`saved_s`: for how long what is not used is saved up; the bucket holds at least 1. It begins full."""
        self.per_minute = per_minute
        self.per_ms = per_minute / _MINUTE_MS
        self.capacity = max(1.0, per_minute * saved_s / 60.0)
        self._level = self.capacity
        self._at_ms = now_ms

    def level(self, now_ms: float) -> float:
        """What is there now; below 0: a debt."""
        if now_ms > self._at_ms:
            level = self._level + (now_ms - self._at_ms) * self.per_ms
            self._level = level if level < self.capacity else self.capacity
            self._at_ms = now_ms
        return self._level

    def has(self, amount: float, now_ms: float) -> bool:
        """Whether `amount` passes now."""
        lacking = (amount if amount < self.capacity else self.capacity) - self.level(now_ms)
        return lacking <= _ROUNDING

    def wait_ms(self, amount: float, now_ms: float) -> float:
        """After how long `amount` passes if nobody takes anything meanwhile; 0: it passes now."""
        lacking = (amount if amount < self.capacity else self.capacity) - self.level(now_ms)
        return 0.0 if lacking <= _ROUNDING else lacking / self.per_ms

    def take(self, amount: float, now_ms: float) -> None:
        """Take it, whether it is there or not. A negative amount is given back; more than full it can't be."""
        level, capacity = self._level, self.capacity
        if now_ms > self._at_ms:  # as in `level`: each request comes here several times
            level += (now_ms - self._at_ms) * self.per_ms
            level = level if level < capacity else capacity
            self._at_ms = now_ms
        level -= amount
        self._level = level if level < capacity else capacity

    def lower_to(self, level: float, now_ms: float) -> None:
        """No more than `level` is there now."""
        self._level = min(self.level(now_ms), level)

    def is_full(self, now_ms: float) -> bool:
        """As good as new."""
        return self.level(now_ms) >= self.capacity
