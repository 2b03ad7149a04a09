"""What a client wants its request to be promised, from its headers."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pointsman.core.model.slo import Slo
from pointsman.edge.wire.errors import BadRequest
from pointsman.edge.wire.http1_request import IncomingRequest

TTFT_HEADER = b"x-slo-ttft-ms"
TPOT_HEADER = b"x-slo-tpot-ms"
CLASS_HEADER = b"x-slo-class"
SLO_HEADERS = frozenset({TTFT_HEADER, TPOT_HEADER, CLASS_HEADER})


class SloHeaders:
    """Reads `x-slo-ttft-ms`, `x-slo-tpot-ms` and `x-slo-class`; the first two win over the class.

    Args:
        classes: what each class promises.
        default: class of requests that name none; None: nothing is promised to them.
    """

    def __init__(self, classes: Mapping[str, Slo], default: str | None = None) -> None:
        self._classes = classes
        self._default = None if default is None else classes[default]

    def of(self, incoming: IncomingRequest) -> Slo | None:
        """None: nothing is promised. Raises BadRequest that names the header."""
        found: dict[bytes, bytes] = {}
        for name, value in incoming.headers:
            if name in SLO_HEADERS:
                if name in found:
                    raise _wrong(name, "given twice")
                found[name] = value
        if not found:
            return self._default
        named = found.get(CLASS_HEADER)
        slo = self._default if named is None else self._class(named)
        ttft, tpot = found.get(TTFT_HEADER), found.get(TPOT_HEADER)
        if ttft is None and tpot is None:
            return slo
        slo = slo or Slo()
        return Slo(
            slo.ttft_ms if ttft is None else _ms(TTFT_HEADER, ttft),
            slo.tpot_ms if tpot is None else _ms(TPOT_HEADER, tpot),
            slo.name,
        )

    def _class(self, value: bytes) -> Slo:
        name = value.decode("latin-1")
        slo = self._classes.get(name)
        if slo is None:
            known = ", ".join(self._classes) or "none is configured (routing.slo_classes)"
            raise _wrong(CLASS_HEADER, f"there is no class {name[:64]!r}; known: {known}")
        return slo


def _ms(header: bytes, value: bytes) -> float:
    try:
        ms = math.nan if b"_" in value else float(value)
    except ValueError:
        ms = math.nan
    if not 0 < ms < math.inf:
        shown = value[:64].decode("latin-1")
        raise _wrong(header, f"expected milliseconds, a number above 0, not {shown!r}")
    return ms


def _wrong(header: bytes, message: str) -> BadRequest:
    name = header.decode()
    return BadRequest(400, f"header {name}: {message}", name, "invalid_header")
