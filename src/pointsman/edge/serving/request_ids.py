"""RequestIds: ids of requests, unique over all front ends."""

from __future__ import annotations

import random
import secrets


class RequestIds:
    """A random part of this front end, and a counter.

    `seed`: of tests, which get the same ids each time; chance in decisions depends on them.
    """

    def __init__(self, seed: int | None = None) -> None:
        part = secrets.randbits(48) if seed is None else random.Random(seed).getrandbits(48)
        self._prefix = f"pm-{part:012x}-"
        self._count = 0

    def next(self) -> str:
        """The id of a new request."""
        self._count += 1
        return f"{self._prefix}{self._count}"

    def gave(self, name: str) -> bool:
        """Whether it is one of those."""
        number = name.removeprefix(self._prefix)
        return number != name and number.isascii() and number.isdigit() and 1 <= int(number[:19]) <= self._count
