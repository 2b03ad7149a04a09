"""NodeClient: calls of a `pointsman node`."""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar

import aiohttp
import msgspec

from pointsman.core.model.errors import EngineError
from pointsman.edge.configuration.secret import Secret
from pointsman.edge.engines.http import connect_reason
from pointsman.edge.node.documents import NodeFacts, Probed, ProbeOrder, Ticket, TicketOrder
from pointsman.edge.wire.errors import error_message

T = TypeVar("T")

_ANSWER_S = 10.0
_MOST_BYTES = 1 << 20


class NodeError(EngineError):
    """A node did not give what was asked for."""

    def __init__(self, url: str, reason: str, status: int | None = None) -> None:
        super().__init__(f"node {url}: {reason}")
        self.status = status
        """None: it did not answer."""


class NodeClient:
    """A context: `async with`. Never shows the token but to nodes that it is told to call."""

    def __init__(self, token: Secret | None = None) -> None:
        self._headers = {} if token is None else {"authorization": f"Bearer {token.reveal()}"}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> NodeClient:
        self._session = aiohttp.ClientSession(headers=self._headers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def facts(self, url: str) -> NodeFacts:
        """What it is. Raises NodeError, as all of these do."""
        return await self._call("GET", url, "/v1/node", NodeFacts, _ANSWER_S)

    async def ticket(self, url: str, asker: str = "") -> Ticket:
        """The right to probe it once; `asker`: id of the node that asks, which can't probe itself."""
        order = TicketOrder(asker) if asker else None
        return await self._call("POST", url, "/v1/ticket", Ticket, _ANSWER_S, order)

    async def probe(self, url: str, order: ProbeOrder, limit_s: float) -> Probed:
        """Let it probe another node."""
        return await self._call("POST", url, "/v1/probe", Probed, limit_s, order)

    async def _call(
        self, method: str, url: str, path: str, answer: type[T], limit_s: float, body: msgspec.Struct | None = None
    ) -> T:
        assert self._session is not None, "used outside of its context"
        data = None if body is None else msgspec.json.encode(body)
        timeout = aiohttp.ClientTimeout(total=limit_s, sock_connect=_ANSWER_S)
        try:
            async with self._session.request(
                method, url + path, data=data, timeout=timeout, allow_redirects=False
            ) as response:
                raw = await _whole(response.content, url)
                status = response.status
        except aiohttp.InvalidURL:
            raise NodeError(url, "is no URL; expected http://host:port") from None
        except TimeoutError:
            raise NodeError(url, f"did not answer within {limit_s:g} s") from None
        except aiohttp.ClientConnectorError as error:
            reason = connect_reason(error)
            raise NodeError(url, f"can't be reached ({reason}); does `pointsman node` run there?") from None
        except (aiohttp.ClientError, OSError) as error:
            raise NodeError(
                url,
                f"hung up without an answer ({str(error) or type(error).__name__}); is it a `pointsman node`?",
            ) from None
        if status == 401:
            reason = (
                "it wants its token, and was shown none or another one: all nodes and who asks them share one, in "
                "POINTSMAN_NODE_TOKEN or the environment variable that --token-env names"
            )
            raise NodeError(url, reason, status)
        if status == 404:
            raise NodeError(url, "is no pointsman node; is that the address and port of its --listen?", status)
        if status != 200:
            raise NodeError(url, error_message(raw) or f"answered with status {status}", status)
        try:
            return msgspec.json.decode(raw, type=answer)
        except msgspec.MsgspecError as error:
            raise NodeError(url, f"is no pointsman node of this version: {error}", status) from None


async def _whole(content: aiohttp.StreamReader, url: str) -> bytes:
    """The body, which may come in pieces."""
    raw = bytearray()
    async for piece in content.iter_any():
        raw += piece
        if len(raw) > _MOST_BYTES:
            raise NodeError(url, f"answered with more than {_MOST_BYTES >> 20} MiB; is it a pointsman node?")
    return bytes(raw)
