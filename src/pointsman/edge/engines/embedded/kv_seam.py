"""Where what moves KV between engines is joined to an engine and its server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from prometheus_client.metrics_core import Metric

from pointsman.core.engine_model.sequence import Sequence
from pointsman.edge.engines.openai_server.listener import Routes
from pointsman.edge.engines.openai_server.sampling import SampledRequest


class KvTransfers(Protocol):
    """Everything that happens to `kv_transfer_params`. Called on the engine's event loop."""

    def routes(self) -> Routes:
        """Routes under `/kv/`."""
        ...

    def prepared(self, request: SampledRequest) -> SampledRequest:
        """The request as the engine is to compute it; `kv_transfer_params` are given. Raises ApiError for bad ones."""
        ...

    def aborted(self, sequence: Sequence) -> None:
        """A sequence was taken out before it had ended by itself."""
        ...

    def answer(self, sequences: list[Sequence]) -> Mapping[str, object] | None:
        """`kv_transfer_params` of the answer to a request, all whose sequences have ended; None: it has none."""
        ...

    def metrics(self) -> Iterable[Metric]:
        """Beside those that every engine has."""
        ...

    async def close(self) -> None:
        """Move nothing more."""
        ...
