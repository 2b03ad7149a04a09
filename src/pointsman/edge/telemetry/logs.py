"""Set-up of logs: one line an event, on stderr."""

from __future__ import annotations

import logging
import sys
import traceback
from types import TracebackType
from typing import TextIO, TypeAlias

from pointsman.core.model.errors import PointsmanError

ROOT = "pointsman"
LEVELS = ("debug", "info", "warning", "error")

_ExceptionInfo: TypeAlias = "tuple[type[BaseException] | None, BaseException | None, TracebackType | None]"
_FORMAT = "%(asctime)s.%(msecs)03d %(levelname)-7s %(name)s: %(message)s"


def set_up_logs(level: str, stream: TextIO | None = None) -> None:
    """Send what `pointsman.<room>` loggers say at `level` or above to `stream` (stderr); again: replace the set-up.

    Warnings of libraries go there too, the first line of each: further ones hold what was sent (aiohttp logs the header
    that it could not read, with a key in it).
    """
    to = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(to)
    handler.setFormatter(_OneLine(_FORMAT, "%H:%M:%S"))
    logger = logging.getLogger(ROOT)
    for old in list(logger.handlers):
        logger.removeHandler(old)
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False
    _set_up_libraries(to)


def _set_up_libraries(stream: TextIO) -> None:
    handler = _Libraries(stream)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(_FirstLine(_FORMAT, "%H:%M:%S"))
    root = logging.getLogger()
    for old in [each for each in root.handlers if isinstance(each, _Libraries)]:
        root.removeHandler(old)
    root.addHandler(handler)


class _Libraries(logging.StreamHandler[TextIO]):
    """Of all that is not ours. Without one, logging itself would write whole exceptions to stderr."""


class _OneLine(logging.Formatter):
    """Messages may quote what others sent: a line break in them must not begin a line of its own.

    Exceptions that nobody expected are shown by their place and kind. What they say may be a part of a prompt: a
    KeyError says the key. Those of the system, and our own, say what was meant to be said.
    """

    def format(self, record: logging.LogRecord) -> str:
        record.exc_text = None  # another handler may have written it in full
        text = super().format(record)
        return text if record.exc_info else text.replace("\r", "\\r").replace("\n", "\\n")

    def formatException(self, ei: _ExceptionInfo) -> str:  # noqa: N802 - the name is logging's
        return "\n".join(_told(error) for error in _chain(ei[1]))


class _FirstLine(_OneLine):
    """Without what a library adds below its message."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is logging's
        record.message = record.message.partition("\n")[0]
        return super().formatMessage(record)


def _chain(error: BaseException | None) -> list[BaseException]:
    """The exception after those that it came from."""
    found: list[BaseException] = []
    while error is not None and not any(error is known for known in found):
        found.insert(0, error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return found


def _told(error: BaseException) -> str:
    said = str(error) if isinstance(error, PointsmanError | OSError) else "(what it says is left out)"
    frames = "".join(traceback.format_tb(error.__traceback__))
    return f"Traceback (most recent call last):\n{frames}{type(error).__qualname__}: {said}"
