"""The one error for a port that can't be listened at."""

from __future__ import annotations

import os
import socket

from pointsman.core.model.errors import EngineError


def listen_error(host: str, port: int, flag: str, error: OSError) -> EngineError:
    """In the system's own words, without what asyncio wraps around them; `flag` is what to change."""
    unknown = isinstance(error, socket.gaierror)  # its numbers are not the system's
    reason = f"no such host ({error.strerror})" if unknown else os.strerror(error.errno) if error.errno else str(error)
    return EngineError(f"can't listen on {host}:{port}: {reason}; choose another {flag}")


def refuse_taken(host: str, port: int, flag: str) -> None:
    """Raises EngineError when somebody listens there: to be said before anything slow is started."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise listen_error(host, port, flag, error) from error
