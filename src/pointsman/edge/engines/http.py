"""EngineHttp: small, bounded calls to one engine, for probing only; requests of clients never pass here."""

from __future__ import annotations

import asyncio
import enum
import ipaddress
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from pointsman.core.model.errors import EngineError
from pointsman.edge.wire.masked import forms_of, masked
from pointsman.edge.wire.shortage import is_own_shortage
from pointsman.edge.wire.trust import (
    ENGINE_ADVICE,
    WANTS_A_CERTIFICATE,
    TlsAdvice,
    Trust,
    certificate_reason,
    tls_reason,
)

T = TypeVar("T")

MAX_BODY_BYTES = 4 << 20
"""vLLM's own description of its routes is 0.3 MB, metrics of 8 ranks with all histograms 0.5 MB."""


MAX_ERROR_BYTES = 1 << 10
"""Of an answer that says what is wrong, as much as people need."""

_NO_KEY = "it wants a key; give the engine's api_key_env (or api_key) in execution-group.nodes"
_WRONG_KEY = "the key given for it is wrong; correct the engine's api_key_env (or api_key)"


class Trouble(enum.Enum):
    """What went wrong with a call."""

    UNREACHABLE = "unreachable"
    NOT_ASKED = "not asked"
    """No connection could be made for want of descriptors or memory here: nothing is known of the engine."""
    TIMED_OUT = "timed out"
    KEY_REFUSED = "key refused"
    NOT_THERE = "not there"
    NOT_READY = "not ready"
    REDIRECTED = "redirected"
    BAD_STATUS = "bad status"
    MALFORMED = "malformed"
    LOST = "lost"
    """The connection ended before the answer did."""


class EngineCallError(EngineError):
    """A call to an engine did not give what was asked for. The message never holds the key."""

    def __init__(self, trouble: Trouble, message: str) -> None:
        super().__init__(message)
        self.trouble = trouble

    @property
    def reachable(self) -> bool:
        """True if the engine answered at all."""
        return self.trouble not in (Trouble.UNREACHABLE, Trouble.TIMED_OUT, Trouble.NOT_ASKED, Trouble.LOST)


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and body of one call."""

    status: int
    content_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class StreamAnswer:
    """How a streamed answer began; the rest of a 200 went to whoever asked."""

    status: int
    content_type: str
    start: bytes = b""
    """The first bytes of an answer other than 200."""


RESOLVED_ANEW_S = 60.0
"""A name may stand for another address by then: no connection to it is used for longer."""
_ROUND = 1.5
"""Time-outs from one heartbeat to the next, at most."""


class EngineHttp:
    """One engine as an HTTP peer: base URL, key, trust and time-out. The session belongs to the caller.

    `api_key` is the engine's own and goes with every call. `trust` is how an https engine is checked; None trusts
    what the system trusts. Redirects are not followed: they could carry the key elsewhere.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        *,
        api_key: str | None = None,
        trust: Trust | None = None,
        timeout_s: float = 4.0,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self.url = url.rstrip("/")
        self._session = session
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._hidden = () if api_key is None else forms_of(api_key.encode())
        self._is_name = not _is_address(self.url)
        self._trust = trust
        self.timeout_s = timeout_s
        self._max_body_bytes = max_body_bytes

    def beside(self, url: str) -> EngineHttp:
        """Another server of the same engine, which gets no key."""
        return EngineHttp(self._session, url, timeout_s=self.timeout_s, max_body_bytes=self._max_body_bytes)

    async def get(self, path: str) -> Answer:
        """The answer to GET, whatever its status. Raises EngineCallError if none came."""
        return await self._call("GET", path, None)

    async def get_text(self, path: str) -> str:
        """The body of a 200 answer to GET. Raises EngineCallError."""
        answer = await self.get(path)
        self._expect_ok("GET", path, answer)
        return answer.body.decode("utf-8", "replace")

    async def get_json(self, path: str, type_: type[T]) -> T:
        """The body of a 200 answer to GET, decoded. Raises EngineCallError."""
        answer = await self.get(path)
        return self._decode("GET", path, answer, type_)

    async def post_json(self, path: str, body: object, type_: type[T]) -> T:
        """The body of a 200 answer to POST, decoded. Raises EngineCallError."""
        answer = await self._call("POST", path, msgspec.json.encode(body))
        return self._decode("POST", path, answer, type_)

    async def post_stream(
        self,
        path: str,
        body: object,
        sink: Callable[[bytes], object],
        *,
        headers: Mapping[str, str] | None = None,
        limit_s: float,
    ) -> StreamAnswer:
        """POST, with the body of a 200 given to `sink` as it comes, to its end. Raises EngineCallError.

        `limit_s` is for all of it, so a stream that stands still ends, too.
        """
        url, trust = self.url + path, self._trust
        began = False
        try:
            async with (
                asyncio.timeout(limit_s),
                self._session.request(
                    "POST",
                    url,
                    data=msgspec.json.encode(body),
                    headers={**self._headers, "Content-Type": "application/json", **(headers or {})},
                    ssl=True if trust is None else trust.context,
                    server_hostname=None if trust is None else trust.server_name,
                    allow_redirects=False,
                ) as response,
            ):
                began = True
                if response.status != 200:
                    start = await response.content.read(MAX_ERROR_BYTES)
                    # Some say which key they refuse, and this comes into the log and the status.
                    return StreamAnswer(response.status, response.content_type, masked(start, self._hidden))
                read = 0
                async for chunk in response.content.iter_any():
                    read += len(chunk)
                    if read > self._max_body_bytes:
                        message = f"POST {url} answered more than {self._max_body_bytes} bytes"
                        raise EngineCallError(Trouble.MALFORMED, message)
                    sink(chunk)
                return StreamAnswer(response.status, response.content_type)
        except TimeoutError:
            message = f"POST {url} was not answered to its end within {limit_s:g} s"
            raise EngineCallError(Trouble.TIMED_OUT, message) from None
        except (aiohttp.ClientError, OSError) as error:
            raise self._stream_error(url, error, began=began) from None

    def _stream_error(self, url: str, error: Exception, *, began: bool) -> EngineCallError:
        if is_own_shortage(error):
            return EngineCallError(Trouble.NOT_ASKED, f"POST {url} could not be sent: {type(error).__name__}")
        if isinstance(error, aiohttp.ClientConnectorError):
            return EngineCallError(Trouble.UNREACHABLE, f"cannot connect to {self.url}: {connect_reason(error)}")
        if isinstance(error, aiohttp.ClientPayloadError | aiohttp.ServerDisconnectedError | OSError):
            where = "in the middle of" if began else "before"
            message = f"the connection of POST {url} ended {where} its answer ({type(error).__name__})"
            return EngineCallError(Trouble.LOST, message)
        return EngineCallError(Trouble.MALFORMED, f"POST {url} answered what is not HTTP: {type(error).__name__}")

    def _decode(self, method: str, path: str, answer: Answer, type_: type[T]) -> T:
        self._expect_ok(method, path, answer)
        try:
            return msgspec.json.decode(answer.body, type=type_, strict=False)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            what = f"{method} {self.url}{path} answered {answer.content_type or 'no type'}"
            raise EngineCallError(Trouble.MALFORMED, f"{what}, which is not the JSON expected: {error}") from None

    def _expect_ok(self, method: str, path: str, answer: Answer) -> None:
        status = answer.status
        if status == 200:
            return
        what = f"{method} {self.url}{path} answered {status}"
        if status in (401, 403):
            hint = _WRONG_KEY if self._headers else _NO_KEY
            raise EngineCallError(Trouble.KEY_REFUSED, f"{what}: {hint}")
        if status in (404, 405, 501):
            raise EngineCallError(Trouble.NOT_THERE, what)
        if status == 503:
            raise EngineCallError(Trouble.NOT_READY, f"{what}: it is not ready, or still loads its model")
        raise EngineCallError(Trouble.BAD_STATUS, what)

    async def _call(self, method: str, path: str, body: bytes | None) -> Answer:
        url, trust = self.url + path, self._trust
        headers = dict(self._headers)
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self._is_name and asyncio.get_running_loop().time() % RESOLVED_ANEW_S < _ROUND * self.timeout_s:
            headers["Connection"] = "close"
        try:
            async with (
                asyncio.timeout(self.timeout_s),
                self._session.request(
                    method,
                    url,
                    data=body,
                    headers=headers,
                    ssl=True if trust is None else trust.context,
                    server_hostname=None if trust is None else trust.server_name,
                    allow_redirects=False,
                ) as response,
            ):
                if 300 <= response.status < 400:
                    target = response.headers.get("Location", "nowhere")
                    message = f"{method} {url} redirects to {target}; give the URL where the engine itself answers"
                    raise EngineCallError(Trouble.REDIRECTED, message)
                content = await self._bounded_body(method, url, response)
                return Answer(response.status, response.content_type, content)
        except TimeoutError:
            message = f"{method} {url} was not answered within {self.timeout_s:g} s"
            raise EngineCallError(Trouble.TIMED_OUT, message) from None
        except aiohttp.ClientConnectorError as error:
            trouble = Trouble.NOT_ASKED if is_own_shortage(error) else Trouble.UNREACHABLE
            raise EngineCallError(trouble, f"cannot connect to {self.url}: {connect_reason(error)}") from None
        except (aiohttp.InvalidURL, UnicodeError) as error:
            raise EngineCallError(Trouble.UNREACHABLE, f"{url!r} is no URL that can be called: {error}") from None
        except (aiohttp.ClientPayloadError, aiohttp.ClientResponseError) as error:
            message = f"{method} {url} answered what is not HTTP: {type(error).__name__}"
            raise EngineCallError(Trouble.MALFORMED, message) from None
        except ssl.SSLError as error:
            raise EngineCallError(Trouble.UNREACHABLE, f"cannot connect to {self.url}: {tls_reason(error)}") from None
        except (aiohttp.ClientError, OSError) as error:
            message = f"{method} {url} failed: {_lost_reason(error, secure=trust is not None)}"
            trouble = Trouble.NOT_ASKED if is_own_shortage(error) else Trouble.UNREACHABLE
            raise EngineCallError(trouble, message) from None

    async def _bounded_body(self, method: str, url: str, response: aiohttp.ClientResponse) -> bytes:
        content = bytearray()
        async for chunk in response.content.iter_any():
            content += chunk
            if len(content) > self._max_body_bytes:
                response.close()
                message = f"{method} {url} answered more than {self._max_body_bytes} bytes"
                raise EngineCallError(Trouble.MALFORMED, message)
        return bytes(content)


def _lost_reason(error: Exception, *, secure: bool) -> str:
    """Why an answer did not come. TLS 1.3 refuses our certificate only after the connection was made."""
    if isinstance(error.__cause__, ssl.SSLError):
        return tls_reason(error.__cause__)
    reason = str(error) or type(error).__name__
    if secure and isinstance(error, aiohttp.ServerDisconnectedError):
        return f"{reason}; {WANTS_A_CERTIFICATE}"
    return reason


def connect_reason(error: aiohttp.ClientConnectorError, advice: TlsAdvice = ENGINE_ADVICE) -> str:
    """Why a connection could not be made, without what aiohttp wraps around the reason."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return certificate_reason(error.certificate_error, advice)
    cause = error.os_error
    if isinstance(cause, ssl.SSLError):
        return tls_reason(cause, advice)
    if isinstance(cause, socket.gaierror) or not cause.errno:
        return _small(cause.strerror or str(cause))
    return _small(os.strerror(cause.errno))


def _small(text: str) -> str:
    """A system's message as a part of a sentence: `Connection refused` to `connection refused`."""
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


NOT_SUCH_AN_ENGINE = frozenset(
    {Trouble.NOT_THERE, Trouble.KEY_REFUSED, Trouble.REDIRECTED, Trouble.BAD_STATUS, Trouble.MALFORMED}
)
"""Troubles that say: this engine has no such route. Gateways answer an unknown path with 401, 403 or a web page."""


async def if_there(call: Awaitable[T]) -> T | None:
    """What a call gave; None where the engine has no such route. Raises EngineCallError if it did not answer."""
    try:
        return await call
    except EngineCallError as error:
        if error.trouble in NOT_SUCH_AN_ENGINE:
            return None
        raise


def _is_address(url: str) -> bool:
    try:
        ipaddress.ip_address(urlsplit(url).hostname or "")
    except ValueError:
        return False
    return True
