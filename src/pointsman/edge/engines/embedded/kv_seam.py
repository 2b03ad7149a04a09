"""Where what moves KV between engines is joined to an engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from pointsman.core.engine_model.sequence import Sequence
from pointsman.edge.engines.openai_server.sampling import SampledRequest


class KvTransfers(Protocol):
    """Everything that happens to `kv_transfer_params`. Called on the engine's event loop."""

    def prepared(self, request: SampledRequest) -> SampledRequest:
        """The request as the engine is to compute it; `kv_transfer_params` are given. Raises ApiError for bad ones."""
        ...

    def refused(self, request: SampledRequest) -> None:
        """The engine did not take a request that was prepared."""
        ...

    def reserved(self, sequences: Iterable[Sequence]) -> None:
        """Sequences at the decode stage got their blocks."""
        ...

    def finished(self, sequences: Iterable[Sequence]) -> None:
        """Sequences have all their tokens; `answer` is asked for in the same turn, if anybody still wants it."""
        ...

    def lost(self) -> None:
        """A step failed: all requests were ended, and no block may be used any more."""
        ...

    def aborted(self, sequence: Sequence) -> None:
        """A sequence was taken out before it had ended by itself."""
        ...

    def answer(self, sequences: list[Sequence]) -> Mapping[str, object] | None:
        """`kv_transfer_params` of the answer to a request, all whose sequences have ended; None: it has none."""
        ...
