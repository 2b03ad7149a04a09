"""What signals mean to a verb that serves: one asks it to stop, a second one to hurry, SIGHUP to read again."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable


class Signals:
    """Filled in by the verb once it serves; until then its signals do what they do to any verb."""

    def __init__(self, *, supervised: bool = False) -> None:
        self.supervised = supervised
        """A supervisor passes on what it is told. SIGTERM says no more the second time, since service managers send it
        to every process of a service as well; SIGINT then asks for haste."""
        self.hurry: Callable[[], None] | None = None
        """On the second signal: wait for nobody any more, but end properly."""
        self.reload: Callable[[], None] | None = None
        """On SIGHUP."""
        # Under `nohup` the end of a terminal is meant to end nothing.
        self._ends_with_terminal = has_terminal() and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN

    def hung_up(self) -> bool:
        """SIGHUP came because the terminal was closed: then it asks to stop, as it does any program."""
        return self._ends_with_terminal and not has_terminal()


def has_terminal() -> bool:
    """Whether somebody could be asked something."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
