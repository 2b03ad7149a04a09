"""GpuWatch: asks a page of metrics how busy the GPUs of one engine are, and how full their memory."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pointsman.edge.engines.gpu_memory import gpu_memory
from pointsman.edge.engines.gpu_metrics import gpu_use
from pointsman.edge.engines.http import EngineCallError, EngineHttp

_log = logging.getLogger("pointsman.cluster")


class GpuWatch:
    """`http` is the page's server, which is not the engine. `gpus`: those that count; None: all of the page."""

    def __init__(self, engine: str, http: EngineHttp, page: str, gpus: Sequence[str] | None) -> None:
        self._engine = engine
        self._http = http
        self._page = page
        self._gpus = gpus
        self.unknown: str | None = None
        """Why nobody knows."""
        self.memory: float | None = None
        """Share of their memory in use at the last reading; None: the page does not tell."""

    async def read(self) -> float | None:
        """Mean busy share, 0 to 1; None: unknown, which is said once."""
        try:
            page = await self._http.get_text(self._page)
            use = gpu_use(page, self._gpus)
            self.memory = gpu_memory(page, self._gpus)
        except Exception as error:  # a page that nobody foresaw must not hide whether the engine lives
            if self.unknown is None:
                unforeseen = None if isinstance(error, EngineCallError) else error
                message = "%s: how busy its GPUs are is unknown from now on: %s"
                _log.warning(message, self._engine, error, exc_info=unforeseen)
            self.unknown = str(error) or type(error).__name__
            self.memory = None
            return None
        if self.unknown is not None:
            _log.info("%s: how busy its GPUs are is known again", self._engine)
            self.unknown = None
        return use
