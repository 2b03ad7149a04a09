"""Which host this is: engines with the same answer may try to share memory."""

from __future__ import annotations

import platform
import uuid
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def host_id() -> str:
    """Of this boot of this machine; containers on one machine have the same."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return f"{platform.node()}-{uuid.getnode():x}"
