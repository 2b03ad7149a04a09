"""An engine must not outlive the process that started it, however that one ended."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1
_POLL_S = 1.0


def die_with_parent(parent_pid: int) -> None:
    """End this process as soon as the parent is gone; at once if it is gone already.

    Linux kills it by itself; elsewhere a thread looks once a second.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        threading.Thread(target=_watch, args=(parent_pid,), name="parent watch", daemon=True).start()
    if os.getppid() != parent_pid:
        os._exit(1)


def _watch(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(_POLL_S)
    os._exit(1)
