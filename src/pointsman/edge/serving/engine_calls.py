"""EngineCalls: our own calls to engines beside the request path, with their keys and certificates."""

from __future__ import annotations

import aiohttp

from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.engines.http import EngineHttp
from pointsman.edge.wire.trust import Trusts


class EngineCalls:
    """One session for all. Make it inside a running event loop."""

    def __init__(self, trusts: Trusts | None = None, timeout_s: float = 10.0) -> None:
        self._trusts = trusts or Trusts()
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    def to(self, source: WorkerSource, timeout_s: float | None = None) -> EngineHttp:
        """Calls to one engine. `timeout_s`: for each of them, where it is not what all calls here have."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(), timeout=aiohttp.ClientTimeout(total=None)
            )
        return EngineHttp(
            self._session,
            source.url,
            api_key=source.api_key,
            trust=self._trusts.of_url(source.url),
            timeout_s=timeout_s or self._timeout_s,
        )

    async def close(self) -> None:
        """End the session."""
        if self._session is not None:
            await self._session.close()
            self._session = None
