"""Trusts: how engines with https are checked, and what they are shown; from files that are read again."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from pointsman.core.model.errors import ConfigError
from pointsman.edge.configuration.tls import EngineTls
from pointsman.edge.wire.origin import Origin


@dataclass(frozen=True, slots=True)
class TlsAdvice:
    """What to do about certificates, by who is called."""

    who: str
    other_name: str
    authority: str
    certificate: str

    @property
    def wants_a_certificate(self) -> str:
        """Where it hung up, or said no."""
        return f"it may refuse the certificate that it is shown, or want one: {self.certificate}"


ENGINE_ADVICE = TlsAdvice(
    who="the engine",
    other_name="give the name that it holds in server_name (control-plane.engine_tls, or tls of the engine in "
    "execution-group.nodes)",
    authority="name the PEM file of the authority that signed it (or of the certificate itself, if it is self-signed) "
    "in control-plane.engine_tls.ca, or in tls.ca of the engine",
    certificate="give certificate and key in control-plane.engine_tls, or in tls of the engine",
)
WANTS_A_CERTIFICATE = ENGINE_ADVICE.wants_a_certificate
_REFUSALS = ("CERTIFICATE_REQUIRED", "HANDSHAKE_FAILURE", "BAD_CERTIFICATE", "UNKNOWN_CA")
_EXPIRED, _NOT_YET_VALID = 10, 9
_OTHER_NAME = (62, 64)


class Trust:
    """Of one or more servers. Connections take `context` when they are made, so it may be replaced any time."""

    __slots__ = ("_files", "_make", "context", "server_name")

    def __init__(
        self, make: Callable[[], ssl.SSLContext], files: Iterable[str | None] = (), server_name: str | None = None
    ) -> None:
        """`make` reads the `files`. It may raise ConfigError: here, never again."""
        self._make = make
        self._files = tuple(Path(name) for name in files if name is not None)
        self.context = make()
        self.server_name = server_name
        """That certificates have to hold; None: the host of the URL."""

    def files(self) -> list[Path]:
        """All that are read."""
        return list(self._files)

    def renew(self) -> list[str]:
        """Read the files again; connections that exist go on. What is wrong with them, and then nothing has changed."""
        try:
            self.context = self._make()
        except ConfigError as error:
            return [str(error)]
        return []


class Trusts:
    """Of a whole fleet: one for all, and others for single engines."""

    def __init__(self, tls: EngineTls | None = None, *, context: ssl.SSLContext | None = None) -> None:
        """`tls`: for all that have none of their own; None: the system's authorities, or those of `context`.

        Raises ConfigError that names the file.
        """
        self._tls = tls
        self._context = context
        self._default: Trust | None = None if tls is None else _trust(tls, "control-plane.engine_tls")
        self._own: dict[EngineTls, Trust] = {}
        self._by_origin: dict[Origin, Trust] = {}

    def use(self, url: str, tls: EngineTls | None) -> None:
        """The engine at `url` has a trust of its own; None: that of all. Raises ConfigError that names the file."""
        origin = Origin.parse(url)
        if tls is None:
            self._by_origin.pop(origin, None)
        else:
            self._by_origin[origin] = self._own[tls] = self._own.get(tls) or _trust(tls, "tls")
        used = {id(trust) for trust in self._by_origin.values()}
        # Another dictionary: a thread may be reading this one.
        self._own = {each: trust for each, trust in self._own.items() if id(trust) in used}

    def forget(self, url: str) -> None:
        """There is no engine at `url` any more. Files that only it needed are read no more."""
        self.use(url, None)

    def of(self, origin: Origin) -> Trust | None:
        """Of the engine there; None: it has no https."""
        if origin.scheme != "https":
            return None
        own = self._by_origin.get(origin)
        if own is not None:
            return own
        if self._default is None:
            context = self._context
            self._default = Trust(ssl.create_default_context if context is None else lambda: context)
        return self._default

    def of_url(self, url: str) -> Trust | None:
        """The same by URL; None also for one that can't be called."""
        try:
            return self.of(Origin.parse(url))
        except ValueError:
            return None

    def files(self) -> list[Path]:
        """All that are read."""
        return [file for trust in self._all() for file in trust.files()]

    def renew(self) -> list[str]:
        """Read all files again; what is wrong with some, for which what was read before holds."""
        return [fault for trust in self._all() for fault in trust.renew()]

    def _all(self) -> list[Trust]:
        return [trust for trust in (self._default, *self._own.values()) if trust is not None]


def _trust(tls: EngineTls, where: str) -> Trust:
    return trust_of(tls.ca, tls.certificate, tls.key, where, tls.server_name)


def trust_of(
    authorities: str | None, certificate: str | None, key: str | None, where: str, server_name: str | None = None
) -> Trust:
    """From PEM files; no authorities: those of the system. Raises ConfigError that names the file and `where`."""

    def made() -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=authorities)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"{where}.ca: can't use {authorities!r}: {file_reason(error)}") from error
        if certificate is not None:
            load_chain(context, certificate, key, where)
        return context

    return Trust(made, (authorities, certificate, key), server_name)


def load_chain(context: ssl.SSLContext, certificate: str, key: str | None, where: str) -> None:
    """Put a certificate into a context. Raises ConfigError; a key with a password is none that can be asked for."""
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ssl.SSLError, ValueError) as error:
        with_key = "" if key is None else f" with key {key!r}"
        raise ConfigError(f"{where}: can't use certificate {certificate!r}{with_key}: {file_reason(error)}") from error


def _no_password() -> str:
    raise ValueError("the key has a password; give one without")


def file_reason(error: Exception) -> str:
    """Why a file of certificates can't be used."""
    if isinstance(error, ssl.SSLError):
        return {
            "KEY_VALUES_MISMATCH": "the key belongs to another certificate",
            "NO_CERTIFICATE_OR_CRL_FOUND": "it holds no certificate",
            "NO_START_LINE": "it is no PEM file",
        }.get(error.reason or "", f"it is no PEM file of that kind ({error.reason or error})")
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def certificate_reason(error: Exception, advice: TlsAdvice = ENGINE_ADVICE) -> str:
    """Why a certificate is not trusted, and what to do."""
    code = getattr(error, "verify_code", 0)
    detail = getattr(error, "verify_message", "") or str(error)
    small = detail[:1].lower() + detail[1:] if detail[1:2].islower() else detail
    if code == _EXPIRED:
        return f"its certificate has expired; give {advice.who} a new one"
    if code == _NOT_YET_VALID:
        return "its certificate is not valid yet; compare the clocks of both machines"
    if code in _OTHER_NAME:
        return f"its certificate is for another name ({small}); {advice.other_name}"
    return f"its certificate is not trusted ({small}); {advice.authority}"


def tls_reason(error: ssl.SSLError, advice: TlsAdvice = ENGINE_ADVICE) -> str:
    """Why no TLS connection comes about, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return certificate_reason(error, advice)
    reason = getattr(error, "reason", None) or str(error)
    if any(word in reason for word in _REFUSALS):
        return f"{reason}; {advice.wants_a_certificate}"
    return f"no TLS connection comes about ({reason}); https:// may be http:// there"
