"""Calls of a running front end's admin port."""

from __future__ import annotations

import asyncio
import errno
import os
import ssl
from collections.abc import Callable, Mapping
from typing import TypeVar

import aiohttp
import click
import msgspec

from pointsman.app.cli.admin_trust import ADMIN_CERTIFICATE_VARIABLE, AdminTrust
from pointsman.app.cli.siblings import front_ends_with, runtime_folder
from pointsman.core.model.errors import EngineError
from pointsman.edge.configuration.control_plane import ControlPlane
from pointsman.edge.engines.http import connect_reason
from pointsman.edge.wire.errors import error_message

F = TypeVar("F", bound=Callable[..., object])
T = TypeVar("T")

DEFAULT_ADMIN_URL = f"http://{ControlPlane().admin_host}:{ControlPlane().admin_port}"
ADMIN_KEY_VARIABLE = "POINTSMAN_ADMIN_KEY"
"""Environment variable with the key of admin ports that want one."""
_LIMIT_S = 10.0
_WANTS_CERTIFICATE = f"it may want a certificate: {ADMIN_CERTIFICATE_VARIABLE} names the PEM file with one and its key"
_WANTS_TLS = "its URL may begin with https://"


class NoFrontEndError(EngineError):
    """Nobody listens at an admin URL, or it doesn't answer."""

    def __init__(self, admin_url: str, reason: str, *, silent: bool = False) -> None:
        """`silent`: whoever is there says nothing."""
        hint = "start one with `pointsman up` or `pointsman serve`, or name its admin port with --admin-url"
        if silent:
            hint = "it may stand still, be too busy, or not be reachable from here: see its log"
        super().__init__(f"no front end answers at {admin_url} ({reason}); {hint}")
        self.reason = reason


class RefusedError(EngineError):
    """A front end answered with a status of 400 or more."""

    def __init__(self, url: str, status: int, message: str) -> None:
        super().__init__(f"{url}: {message or f'status {status}'}")
        self.status = status
        self.message = message


def admin_url_option(command: F) -> F:
    """The option `--admin-url` of the verbs that ask a running front end."""
    return click.option(
        "--admin-url",
        default=DEFAULT_ADMIN_URL,
        show_default=True,
        help="Admin port of the front end, `http://host:port`.",
    )(command)


def call(method: str, admin_url: str, path: str, answer: type[T], body: object = None) -> T:
    """One call.

    Raises NoFrontEndError that says what to do when nobody listens, RefusedError with the front end's own message.
    """
    raw = asyncio.run(_call(method, admin_url.rstrip("/"), path, None if body is None else msgspec.json.encode(body)))
    try:
        return msgspec.json.decode(raw, type=answer)
    except msgspec.MsgspecError as error:
        raise EngineError(f"{admin_url}{path}: no answer of a pointsman of this version: {error}") from error


async def _call(method: str, admin_url: str, path: str, body: bytes | None) -> bytes:
    timeout = aiohttp.ClientTimeout(total=_LIMIT_S)
    headers = {"content-type": "application/json", **admin_headers(os.environ)}
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.request(
                method, admin_url + path, data=body, headers=headers, ssl=_ssl(admin_url, os.environ)
            ) as answer,
        ):
            raw = await answer.read()
    except aiohttp.InvalidURL:
        raise EngineError(f"--admin-url {admin_url}: expected http://host:port") from None
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise NoFrontEndError(admin_url, _reason(error, admin_url), silent=isinstance(error, TimeoutError)) from None
    if answer.status >= 400:
        hint = f"; set {ADMIN_KEY_VARIABLE}" if answer.status == 401 else ""
        raise RefusedError(admin_url + path, answer.status, error_message(raw) + hint)
    return raw


def admin_headers(environ: Mapping[str, str]) -> dict[str, str]:
    """What shows an admin port its key; empty where none is set."""
    key = environ.get(ADMIN_KEY_VARIABLE, "").strip()
    return {"authorization": f"Bearer {key}"} if key else {}


def _ssl(admin_url: str, environ: Mapping[str, str]) -> ssl.SSLContext | bool:
    """By what an admin port with https is checked, and what it is shown."""
    return AdminTrust(environ).context if admin_url.startswith("https:") else True


def _reason(error: Exception, admin_url: str) -> str:
    if isinstance(error, TimeoutError):
        return f"nothing for {_LIMIT_S:.0f} s"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        said = str(getattr(error.certificate_error, "verify_message", "") or error.certificate_error)
        return f"its certificate is not trusted ({said}); SSL_CERT_FILE may name the PEM file of who signed it"
    hung_up = isinstance(error, aiohttp.ServerDisconnectedError) or getattr(error, "errno", None) == errno.ECONNRESET
    if hung_up:
        return "it hung up; " + (_WANTS_CERTIFICATE if admin_url.startswith("https:") else _WANTS_TLS)
    if "CERTIFICATE_REQUIRED" in str(error):
        return _WANTS_CERTIFICATE
    if isinstance(error, aiohttp.ClientConnectorError):
        return connect_reason(error)
    return str(error) or type(error).__name__


def front_ends(admin_url: str) -> list[str]:
    """The admin URLs of the front end at `admin_url` and of those that `serve --processes` started with it."""
    return front_ends_with(admin_url, runtime_folder(os.environ))
