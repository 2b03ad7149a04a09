"""Connections to upstreams, kept for the next request."""

from __future__ import annotations

import asyncio
import ssl

from pointsman.edge.wire.errors import OwnShortageError, UpstreamConnectError
from pointsman.edge.wire.http1_upstream import UpstreamConnection, UpstreamProtocol
from pointsman.edge.wire.masked import forms_of
from pointsman.edge.wire.origin import Origin
from pointsman.edge.wire.shortage import is_own_shortage
from pointsman.edge.wire.trust import Trusts, tls_reason

_CLOSE_TIMEOUT_S = 5.0
_DROPPED_FOR_ROOM = 16


class UpstreamPool:
    """Idle connections by origin, the last one used first.

    None is kept for longer than `max_age_s`, however busy it is: a name may stand for another address by then.
    """

    def __init__(
        self,
        *,
        connect_timeout_s: float = 5.0,
        max_idle_per_origin: int = 256,
        idle_timeout_s: float = 30.0,
        max_age_s: float = 60.0,
        trusts: Trusts | None = None,
    ):
        self.connect_timeout_s = connect_timeout_s
        self._max_idle = max_idle_per_origin
        self._idle_timeout_s = idle_timeout_s
        self._max_age_s = max_age_s
        self._trusts = trusts or Trusts()
        self._idle: dict[Origin, list[UpstreamProtocol]] = {}
        self._open: set[UpstreamProtocol] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._all_closed: asyncio.Future[None] | None = None
        self._closing = False
        self._secrets: dict[Origin, tuple[bytes, ...]] = {}

    def hide(self, origin: Origin, secret: str | None) -> None:
        """What an upstream must not repeat to clients in its answers; None: nothing."""
        forms = () if secret is None else forms_of(secret.encode())
        if forms:
            self._secrets[origin] = forms
        else:
            self._secrets.pop(origin, None)

    @property
    def open_connections(self) -> int:
        """Connections that are open, idle or busy."""
        return len(self._open)

    def idle_connection(self, origin: Origin) -> UpstreamConnection | None:
        """A kept connection, if there is one."""
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()
            if connection.usable:
                return connection.hold(self._secrets.get(origin, ()))
        return None

    async def connect(self, origin: Origin, *, fresh: bool = False) -> UpstreamConnection:
        """A kept connection, or a new one (`fresh`: always).

        Raises UpstreamConnectError; OwnShortageError where the fault is ours.
        """
        connection = None if fresh else self.idle_connection(origin)
        if connection is not None:
            return connection
        try:
            return await self._open_new(origin)
        except OwnShortageError:
            # Connections that are kept for later are worth less than one that is needed now.
            if not self._drop_idle(_DROPPED_FOR_ROOM):
                raise
            await asyncio.sleep(0)
            await asyncio.sleep(0)  # the loop closes them in its next turn
            return await self._open_new(origin)

    async def _open_new(self, origin: Origin) -> UpstreamConnection:
        if self._closing:
            raise UpstreamConnectError(f"can't connect to {origin}: the pool is closed")
        loop = asyncio.get_running_loop()
        connection = UpstreamProtocol(self, origin, loop)
        connection.made_s = loop.time()
        trust = self._trusts.of(origin)
        try:
            async with asyncio.timeout(self.connect_timeout_s):
                await loop.create_connection(
                    lambda: connection,
                    origin.host,
                    origin.port,
                    ssl=None if trust is None else trust.context,
                    server_hostname=None if trust is None else trust.server_name or origin.host,
                )
        except TimeoutError:
            connection.abort()
            raise UpstreamConnectError(
                f"can't connect to {origin}: no answer within {self.connect_timeout_s:g} s"
            ) from None
        except ssl.SSLError as error:
            connection.abort()
            raise UpstreamConnectError(f"can't connect to {origin}: {tls_reason(error)}") from error
        except (OSError, ValueError) as error:
            connection.abort()
            if isinstance(error, OSError) and is_own_shortage(error):
                raise OwnShortageError(
                    f"can't connect to {origin}: {error}, which is this front end's fault"
                ) from error
            raise UpstreamConnectError(f"can't connect to {origin}: {error}") from error
        except BaseException:
            connection.abort()
            raise
        if connection.usable:
            self._open.add(connection)
        return connection.hold(self._secrets.get(origin, ()))

    # ---- called by connections

    def released(self, connection: UpstreamProtocol) -> None:
        """Keep it for the next request."""
        idle = self._idle.setdefault(connection.origin, [])
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if self._closing or len(idle) >= self._max_idle or now_s - connection.made_s >= self._max_age_s:
            connection.abort()
            return
        connection.idle_since_s = now_s
        idle.append(connection)
        if self._sweep is None:
            self._sweep = loop.call_later(self._idle_timeout_s / 2, self._drop_expired)

    def lost(self, connection: UpstreamProtocol) -> None:
        """Forget it."""
        self._open.discard(connection)
        idle = self._idle.get(connection.origin)
        if idle and connection in idle:
            idle.remove(connection)
        if not self._open and self._all_closed is not None and not self._all_closed.done():
            self._all_closed.set_result(None)

    def _drop_idle(self, most: int) -> int:
        """Close kept connections, those that were used longest ago first; how many."""
        oldest = sorted((c for idle in self._idle.values() for c in idle), key=lambda c: c.idle_since_s)[:most]
        for connection in oldest:
            self._idle[connection.origin].remove(connection)
            connection.abort()
        return len(oldest)

    def _drop_expired(self) -> None:
        loop = asyncio.get_running_loop()
        oldest_s = loop.time() - self._idle_timeout_s
        for origin, idle in tuple(self._idle.items()):
            expired = [c for c in idle if c.idle_since_s <= oldest_s]
            kept = [c for c in idle if c.idle_since_s > oldest_s]
            if kept:
                self._idle[origin] = kept
            else:
                del self._idle[origin]
            for connection in expired:
                connection.abort()
        self._sweep = loop.call_later(self._idle_timeout_s / 2, self._drop_expired) if self._idle else None

    async def close(self) -> None:
        """Close all connections; exchanges in flight end with UpstreamClosed."""
        self._closing = True
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        self._idle.clear()
        if not self._open:
            return
        self._all_closed = asyncio.get_running_loop().create_future()
        for connection in tuple(self._open):
            connection.cut()
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._all_closed
        except TimeoutError:
            return
