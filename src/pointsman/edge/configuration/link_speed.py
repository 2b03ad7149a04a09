"""LinkSpeed: how fast a link is thought to be, as people write it in a configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pointsman.core.model.errors import ConfigError
from pointsman.core.timing.links import Link, link


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """A link by name, or by speed and floor."""

    link: Link
    text: str

    expected: ClassVar[str] = "a link by name or speed, and the floor of a transfer: roce, 12.5GB/s, 25gbe:0.5ms"

    @classmethod
    def parse(cls, value: object) -> LinkSpeed:
        """Read `roce`, `12.5GB/s:0.5ms`. Raises ValueError for anything else."""
        if not isinstance(value, str):
            raise ValueError(cls.expected)
        try:
            return cls(link(value), value.strip())
        except ConfigError as error:
            raise ValueError(f"{cls.expected} ({error})") from None

    def __str__(self) -> str:
        return self.text
