"""Whether a connection failed for want of something here, which says nothing about who was to be reached."""

from __future__ import annotations

import errno
import os

_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL, errno.EAGAIN})
"""No descriptor, buffer, memory or local port is left."""


def is_own_shortage(error: BaseException) -> bool:
    """True if the fault is on this side: descriptors, buffers, memory or local ports ran out.

    Name resolution hides its reason, so where one failed it is tried whether a file could be opened at all.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in _OURS:
            return True
        inner = getattr(seen, "os_error", None)  # aiohttp's way of keeping it
        seen = inner if isinstance(inner, BaseException) else seen.__cause__
    return not _can_open()


def _can_open() -> bool:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno not in (errno.EMFILE, errno.ENFILE)
    return True
