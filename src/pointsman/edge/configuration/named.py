"""named: faults of what a key of the configuration leads to say which key that is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pointsman.core.model.errors import ConfigError


@contextmanager
def named(where: str) -> Iterator[None]:
    """A ConfigError that is raised inside begins with `where`."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
