"""Which way blocks go: the best that both sides can and their operators allow."""

from __future__ import annotations

from collections.abc import Sequence

from pointsman.core.model.errors import ConfigError

NIXL, SHM, TCP = "nixl", "shm", "tcp"
TRANSPORTS = (NIXL, SHM, TCP)
"""Best first."""
AUTO = "auto"


def allowed(wish: str, *, nixl: bool, shm: bool) -> tuple[str, ...]:
    """Transports of one side by its operator's wish, best first; `nixl` and `shm`: whether they work here.

    Raises ConfigError for one that is asked for by name and does not work here.
    """
    works = {NIXL: nixl, SHM: shm, TCP: True}
    if wish == AUTO:
        return tuple(name for name in TRANSPORTS if works[name])
    if wish not in TRANSPORTS:
        raise ConfigError(f"KV transport {wish!r} is not known; there are {', '.join((AUTO, *TRANSPORTS))}")
    if not works[wish]:
        missing = {
            NIXL: "its package is not installed: pip install --no-deps nixl nixl-cu12",
            SHM: "this system has no memfd_create; use tcp",
        }
        raise ConfigError(f"KV transport {wish}: {missing[wish]}")
    return (wish,)


def best_common(asked: Sequence[str], mine: Sequence[str]) -> str | None:
    """The best of those that both sides may use; None: there is none."""
    return next((name for name in TRANSPORTS if name in asked and name in mine), None)
