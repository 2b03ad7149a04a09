"""AdminJoiner: an engine that tells a front end of itself, again and again, so that a new one learns it too."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from urllib.parse import quote

import aiohttp
import msgspec

from pointsman.edge.cluster.join.joiner import Trouble
from pointsman.edge.engines.http import connect_reason
from pointsman.edge.wire.trust import TlsAdvice

_LIMIT_S = 5.0
_FIRST_PAUSE_S = 0.5
_ADVICE = TlsAdvice(
    who="the front end",
    other_name="call it by that name in --join",
    authority="SSL_CERT_FILE may name the PEM file of the authority that signed it",
    certificate="POINTSMAN_ADMIN_CERTIFICATE names the PEM file with one and its key",
)


class _Said(msgspec.Struct):
    message: str = ""


class _Refusal(msgspec.Struct):
    error: _Said = msgspec.field(default_factory=_Said)


class AdminJoiner:
    """Registers at one admin port. The session belongs to the caller.

    Args:
        key: the port's own, where it wants one.
        certificates: for ports with https: how they are checked, and what they are shown, from now on; None: by what
            the system trusts.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        name: str,
        record: bytes,
        ttl_s: int,
        key: str | None = None,
        certificates: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self._session = session
        self._certificates = certificates
        self._url = url.rstrip("/")
        self._name = name
        self._record = record
        self._ttl_s = ttl_s
        self._headers = {"content-type": "application/json"}
        if key is not None:
            self._headers["authorization"] = f"Bearer {key}"
        self._trouble = Trouble(self._url)
        self._turn = asyncio.Lock()
        """One after the other: what is said last has to arrive last."""

    async def run(self) -> None:
        """Registers three times in the time that a registration lasts, until cancelled."""
        pause_s = _FIRST_PAUSE_S
        while True:
            if await self._post():
                pause_s = _FIRST_PAUSE_S
                await asyncio.sleep(self._ttl_s / 3)
            else:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, max(_FIRST_PAUSE_S, self._ttl_s / 3))

    async def say(self, record: bytes) -> None:
        """Another record from now on."""
        self._record = record
        await self._post()

    async def leave(self) -> None:
        """Take the record away, unless it is another engine's that has the name."""
        ours = quote(msgspec.json.decode(self._record)["url"], safe="")
        await self._call("DELETE", f"/v1/workers/{quote(self._name, safe='')}?now=true&url={ours}", None)

    async def _post(self) -> bool:
        async with self._turn:
            record = msgspec.json.decode(self._record)
            record["ttl"] = f"{self._ttl_s}s"
            reason = await self._call("POST", "/v1/workers", msgspec.json.encode(record))
        if reason is None:
            self._trouble.over()
        else:
            self._trouble.is_(reason)
        return reason is None

    async def _call(self, method: str, path: str, body: bytes | None) -> str | None:
        """Why it did not work; None: it did."""
        checked_by = True if self._certificates is None else self._certificates()
        try:
            async with (
                asyncio.timeout(_LIMIT_S),
                self._session.request(
                    method, self._url + path, data=body, headers=self._headers, ssl=checked_by, allow_redirects=False
                ) as answer,
            ):
                said = await answer.content.read(65_536)
        except TimeoutError:
            return f"no answer within {_LIMIT_S:g} s"
        except aiohttp.ClientConnectorError as error:
            return connect_reason(error, _ADVICE)
        except (aiohttp.ClientError, OSError) as error:
            reason = str(error) or type(error).__name__
            if not self._url.startswith("https:"):
                return reason
            return f"{reason}; {_ADVICE.wants_a_certificate}"
        if answer.status < 300:
            return None
        if answer.status == 404 and method == "POST":
            return "this is no admin port of a pointsman"
        hint = "; set POINTSMAN_ADMIN_KEY" if answer.status == 401 else ""
        return f"status {answer.status}: {_message(said)}{hint}"


def _message(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=_Refusal).error.message
    except msgspec.MsgspecError:
        return "no reason given"
