"""Time limits of one request to an engine, each for a wait of its own kind. Defaults are the configuration's."""

from __future__ import annotations

from dataclasses import dataclass

from pointsman.edge.configuration.control_plane import Timeouts as ConfiguredTimeouts


@dataclass(frozen=True, slots=True)
class Timeouts:
    """All in seconds."""

    connect_s: float
    first_byte_s: float
    """From dispatch to the first byte of the answer."""
    idle_s: float
    """Between two bytes of the answer."""
    total_s: float | None
    """From arrival to the last byte."""

    @classmethod
    def of(cls, configured: ConfiguredTimeouts) -> Timeouts:
        """From the section `control-plane.timeouts`."""
        return cls(
            connect_s=configured.connect.s,
            first_byte_s=configured.first_byte.s,
            idle_s=configured.idle.s,
            total_s=None if configured.total is None else configured.total.s,
        )
