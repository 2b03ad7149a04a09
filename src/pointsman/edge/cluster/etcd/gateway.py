"""Gateway: calls of etcd's JSON gateway at whichever endpoint answers."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import aiohttp
import msgspec

from pointsman.edge.cluster.etcd.access import EtcdAccess
from pointsman.edge.cluster.etcd.errors import EtcdRefusedError, EtcdUnreachableError
from pointsman.edge.cluster.etcd.messages import Refusal, TokenAnswer, decode
from pointsman.edge.engines.http import connect_reason
from pointsman.edge.wire.trust import TlsAdvice

T = TypeVar("T")

_UNAUTHENTICATED = 16
_OLD_TOKEN = ("invalid auth token", "revision of auth store is old", "user name is empty")
_CANT_DECIDE = frozenset({1, 4, 8, 10, 13, 14})
"""gRPC codes of a member that is alone, stops or is overloaded: another one may know better."""
_NOT_ENABLED = "authentication is not enabled"
_AUTHENTICATE = "/v3/auth/authenticate"
_MOST_ANSWER_BYTES = 64 * 2**20
_MOST_REFUSAL_BYTES = 65_536
_ADVICE = TlsAdvice(
    who="etcd",
    other_name="call it by that name in etcd.endpoints",
    authority="name the PEM file of the authority that signed it in etcd.ca",
    certificate="give etcd.certificate and etcd.key",
)


class _TryNextError(Exception):
    """An endpoint could not answer. `sent`: it may have done what was asked nevertheless."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class Gateway:
    """Connections to one cluster. Whichever endpoint answered last is asked first."""

    def __init__(self, access: EtcdAccess) -> None:
        self._access = access
        self._session: aiohttp.ClientSession | None = None
        self._first = 0
        self._token: str | None = None

    async def close(self) -> None:
        """Closes all connections; a later call opens new ones."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def call(self, path: str, body: dict[str, object], answer: type[T], *, twice: bool = True) -> T:
        """POST `body` to the first endpoint that answers. `twice`: done twice is as good as once.

        Raises EtcdUnreachableError when no endpoint answers, EtcdRefusedError when one says no.
        """
        data = msgspec.json.encode(body)

        async def ask(endpoint: str) -> T:
            return _decoded(endpoint, path, await self._post(endpoint, path, data), answer)

        return await self._anywhere(ask, twice=twice)

    @asynccontextmanager
    async def stream(self, path: str, body: dict[str, object]) -> AsyncIterator[aiohttp.StreamReader]:
        """The lines that an endpoint answers with, for as long as it does. Raises as `call` does, and while reading
        EtcdUnreachableError when the stream breaks off."""
        data = msgspec.json.encode(body)
        response = await self._anywhere(lambda endpoint: self._open(endpoint, path, data), twice=True)
        try:
            yield response.content
        except (aiohttp.ClientError, OSError) as error:
            raise EtcdUnreachableError(f"etcd {response.url.origin()}: the watch broke off: {_why(error)}") from None
        finally:
            response.close()

    async def _anywhere(self, ask: Callable[[str], Awaitable[T]], *, twice: bool) -> T:
        endpoints = self._access.endpoints
        troubles: list[str] = []
        for step in range(len(endpoints)):
            number = (self._first + step) % len(endpoints)
            try:
                answer = await ask(endpoints[number])
            except _TryNextError as trouble:
                troubles.append(str(trouble))
                if trouble.sent and not twice:
                    break
            else:
                self._first = number
                return answer
        self._first = (self._first + 1) % len(endpoints)
        raise EtcdUnreachableError("; ".join(troubles))

    async def _post(self, endpoint: str, path: str, data: bytes) -> bytes:
        try:
            async with asyncio.timeout(self._access.timeout_s):
                response = await self._open(endpoint, path, data)
                async with response:
                    return await _whole(response)
        except TimeoutError:
            waited = f"etcd {endpoint} did not answer within {self._access.timeout_s:g} s"
            raise _TryNextError(waited, sent=True) from None
        except (aiohttp.ClientError, OSError) as error:
            raise _TryNextError(f"etcd {endpoint}: {_why(error)}", sent=True) from None

    async def _open(self, endpoint: str, path: str, data: bytes) -> aiohttp.ClientResponse:
        """An answer of status 200, its body not read yet."""
        token = await self._current_token(endpoint)
        try:
            return await self._request(endpoint, path, data, token)
        except _OldTokenError as error:
            if self._access.user is None:
                raise EtcdRefusedError(f"etcd {endpoint} wants a user: {error}; name one in etcd.user") from None
            if self._token == token:  # nobody else has got a new one meanwhile
                self._token = None
        token = await self._current_token(endpoint)
        try:
            return await self._request(endpoint, path, data, token)
        except _OldTokenError as error:
            raise EtcdRefusedError(f"etcd {endpoint} does not take its own token: {error}") from None

    async def _current_token(self, endpoint: str) -> str:
        if self._access.user is None:
            return ""
        if self._token is None:
            self._token = await self._authenticated(endpoint)
        return self._token

    async def _authenticated(self, endpoint: str) -> str:
        body = msgspec.json.encode({"name": self._access.user, "password": self._access.password or ""})
        try:
            response = await self._request(endpoint, _AUTHENTICATE, body, "")
        except _NoAuthenticationError:
            return ""
        async with response:
            return _decoded(endpoint, _AUTHENTICATE, await _whole(response), TokenAnswer).token

    async def _request(self, endpoint: str, path: str, data: bytes, token: str) -> aiohttp.ClientResponse:
        headers = {"Content-Type": "application/json", "Grpc-Metadata-hasleader": "true"}
        if token:
            headers["Authorization"] = token
        try:
            async with asyncio.timeout(self._access.timeout_s):
                response = await self._connections().post(
                    endpoint + path, data=data, headers=headers, ssl=self._ssl(), allow_redirects=False
                )
        except TimeoutError:
            waited = f"etcd {endpoint} did not answer within {self._access.timeout_s:g} s"
            raise _TryNextError(waited, sent=True) from None
        except aiohttp.ClientConnectorError as error:
            raise _TryNextError(f"etcd {endpoint}: {connect_reason(error, _ADVICE)}", sent=False) from None
        except (aiohttp.ClientError, OSError) as error:
            raise _TryNextError(f"etcd {endpoint}: {_why(error)}", sent=True) from None
        if response.status != 200:
            async with response:
                raise _refusal(endpoint, path, response.status, await response.content.read(_MOST_REFUSAL_BYTES))
        return response

    def _ssl(self) -> ssl.SSLContext | bool:
        """Certificates as they were read last; connections that show others are not used any more."""
        trust = self._access.trust
        return True if trust is None else trust.context

    def _connections(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),
                read_bufsize=2**20,
            )
        return self._session


class _OldTokenError(Exception):
    """The token is over; a new one is to be asked for."""


class _NoAuthenticationError(Exception):
    """Users are not switched on there: whoever asks is let in."""


async def _whole(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > _MOST_ANSWER_BYTES:
            response.close()
            raise EtcdRefusedError(f"etcd {response.url.origin()} answered more than {_MOST_ANSWER_BYTES} bytes")
    return bytes(body)


def _refusal(endpoint: str, path: str, status: int, body: bytes) -> Exception:
    try:
        said = decode(body, Refusal)
    except msgspec.MsgspecError:
        if status >= 500:  # of something that stands before it
            return _TryNextError(f"etcd {endpoint}: status {status}", sent=True)
        return EtcdRefusedError(f"{endpoint}{path} answered {status} and no JSON; is this the client port of an etcd?")
    message = said.message or said.error
    if said.code == _UNAUTHENTICATED or any(text in message for text in _OLD_TOKEN):
        return _OldTokenError(message)
    if _NOT_ENABLED in message and path == _AUTHENTICATE:
        return _NoAuthenticationError(message)
    if said.code in _CANT_DECIDE or status >= 500:
        return _TryNextError(f"etcd {endpoint}: {message or status}", sent=True)
    return EtcdRefusedError(f"etcd {endpoint}: {message or status}")


def _decoded(endpoint: str, path: str, body: bytes, answer: type[T]) -> T:
    try:
        return decode(body, answer)
    except msgspec.MsgspecError as error:
        raise EtcdRefusedError(f"{endpoint}{path} answered what no etcd from 3.4 on does: {error}") from None


def _why(error: BaseException) -> str:
    return str(error) or type(error).__name__
