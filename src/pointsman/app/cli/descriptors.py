"""How many connections fit into the descriptors that the system lets a process have."""

from __future__ import annotations

import logging
import resource
import sys

_log = logging.getLogger("pointsman.cli")

MOST_DESCRIPTORS = 1_048_576
"""More is never asked for: some systems call their limit infinite and then refuse the number."""
_MACOS_MOST = 10_240
"""OPEN_MAX of macOS, which takes no higher soft limit than this unless it was set up to."""
_RESERVED = 200
"""For listening, logs, probes, admin routes, libraries."""
_KEPT_BACK = 64
_PER_STREAM = 2
"""The client's connection and the engine's."""


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open descriptors as far as allowed; the limit that then holds."""
    allowed = _raise()
    _log.info("%d descriptors can be open at once", allowed)
    return allowed


def _raise() -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        for limit in (wanted, _MACOS_MOST) if sys.platform == "darwin" else (wanted,):
            if limit > soft and _set(limit, hard):
                return limit
        _log.warning("the limit of open descriptors stays %d: the system refuses more", soft)
    return MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def max_connections(descriptors: int) -> int:
    """Client connections that a front end with that many descriptors can serve."""
    return max(1, (descriptors - _RESERVED) // _PER_STREAM)


def highest_for_clients() -> int | None:
    """The highest number that the descriptor of a client's connection may have; None: there is no limit.

    Above it few are left, whatever took them: those are for engines, probes, logs and the admin port.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else max(16, soft - min(_KEPT_BACK, soft // 4))


def connections_that_fit() -> int:
    """Client connections that this process can serve once the limit is raised."""
    connections = max_connections(raise_descriptor_limit())
    _log.info("at most %d client connections at once, with %d descriptors each", connections, _PER_STREAM)
    return connections


def _set(soft: int, hard: int) -> bool:
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    except (OSError, ValueError):
        return False
    return True
