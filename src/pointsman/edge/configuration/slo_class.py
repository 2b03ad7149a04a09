"""Part `routing.slo_classes.NAME`: what requests of a class are promised."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from pointsman.core.model.slo import Slo
from pointsman.edge.configuration.conflict import KeyConflictError
from pointsman.edge.configuration.duration import Duration


class SloClass(msgspec.Struct, frozen=True, kw_only=True):
    """What requests of a class are promised: at least one of the two."""

    ttft: Annotated[Duration | None, Meta(description="From a request's arrival to its first token.")] = None
    tpot: Annotated[Duration | None, Meta(description="Mean time between its tokens.")] = None

    def __post_init__(self) -> None:
        if self.ttft is None and self.tpot is None:
            raise KeyConflictError("ttft", "is missing and so is tpot; a class promises at least one of them")

    def of(self, name: str) -> Slo:
        """For requests of the class that is called so."""
        return Slo(None if self.ttft is None else self.ttft.ms, None if self.tpot is None else self.tpot.ms, name)
