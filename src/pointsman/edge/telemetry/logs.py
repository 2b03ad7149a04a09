"""Set-up of logs: one line an event, on stderr."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

ROOT = "pointsman"
LEVELS = ("debug", "info", "warning", "error")

_FORMAT = "%(asctime)s.%(msecs)03d %(levelname)-7s %(name)s: %(message)s"


def set_up_logs(level: str, stream: TextIO | None = None) -> None:
    """Send what `pointsman.<room>` loggers say at `level` or above to `stream` (stderr); again: replace the set-up."""
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(_OneLine(_FORMAT, "%H:%M:%S"))
    logger = logging.getLogger(ROOT)
    for old in list(logger.handlers):
        logger.removeHandler(old)
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False


class _OneLine(logging.Formatter):
    """Messages may quote what others sent: a line break in them must not begin a line of its own."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return text if record.exc_info else text.replace("\r", "\\r").replace("\n", "\\n")
