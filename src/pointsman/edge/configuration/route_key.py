"""RouteKey: which part of a request says that requests belong together."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import ClassVar

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A token of RFC 9110, section 5.6.2."""


class RouteKeySource(enum.StrEnum):
    """Where the key is read."""

    HEADER = "header"
    BODY = "body"
    TENANT = "tenant"


@dataclass(frozen=True, slots=True)
class RouteKey:
    """What `routing.route_key` selects."""

    source: RouteKeySource
    name: str = ""
    """Header in lower case, or path of the body's field with dots (`metadata.session`); empty for the tenant."""

    expected: ClassVar[str] = "header:NAME, body:FIELD (dots lead into objects: body:metadata.session) or tenant"

    @classmethod
    def parse(cls, value: object) -> RouteKey:
        """Read `header:NAME`, `body:FIELD` or `tenant`. Raises ValueError for anything else."""
        if not isinstance(value, str):
            raise ValueError(cls.expected)
        source, colon, name = value.strip().partition(":")
        name = name.strip()
        if source == "tenant" and not colon:
            return cls(RouteKeySource.TENANT)
        if source == "header" and _HEADER_NAME.fullmatch(name):
            return cls(RouteKeySource.HEADER, name.lower())
        if source == "body" and name and all(name.split(".")):
            return cls(RouteKeySource.BODY, name)
        raise ValueError(cls.expected)

    @property
    def path(self) -> tuple[str, ...]:
        """The body's field as a path of keys; empty unless the source is the body."""
        return tuple(self.name.split(".")) if self.source is RouteKeySource.BODY else ()

    def __str__(self) -> str:
        return f"{self.source}:{self.name}" if self.name else str(self.source)
