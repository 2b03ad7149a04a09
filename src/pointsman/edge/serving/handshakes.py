"""Handshakes: how those of clients end, which asyncio tells nobody when they fail."""

from __future__ import annotations

import enum
import logging
import ssl
from collections import Counter
from collections.abc import Callable

from pointsman.edge.serving.clock import monotonic_ms

SAID_EVERY_MS = 10_000.0

_log = logging.getLogger("pointsman.serving")


class Outcome(enum.StrEnum):
    """Of a handshake, as metrics name it."""

    DONE = "done"
    NO_CERTIFICATE = "no_certificate"
    WRONG_CERTIFICATE = "wrong_certificate"
    REFUSED_BY_CLIENT = "refused_by_client"
    NO_TLS = "no_tls"
    NOTHING_IN_COMMON = "nothing_in_common"
    OTHER = "other"


_WORDS: tuple[tuple[str, Outcome], ...] = (
    ("PEER_DID_NOT_RETURN_A_CERTIFICATE", Outcome.NO_CERTIFICATE),
    ("CERTIFICATE_VERIFY_FAILED", Outcome.WRONG_CERTIFICATE),
    ("ALERT", Outcome.REFUSED_BY_CLIENT),
    ("HTTP_REQUEST", Outcome.NO_TLS),
    ("HTTPS_PROXY_REQUEST", Outcome.NO_TLS),
    ("WRONG_VERSION_NUMBER", Outcome.NO_TLS),
    ("RECORD", Outcome.NO_TLS),
    ("PACKET_LENGTH", Outcome.NO_TLS),
    ("UNSUPPORTED_PROTOCOL", Outcome.NOTHING_IN_COMMON),
    ("VERSION_TOO_LOW", Outcome.NOTHING_IN_COMMON),
    ("NO_SHARED", Outcome.NOTHING_IN_COMMON),
    ("NO_SUITABLE", Outcome.NOTHING_IN_COMMON),
)
"""What OpenSSL says, the first that fits."""


class Handshakes:
    """Of one port. A failed one is counted, and said at most once in ten seconds."""

    def __init__(self, where: str, clock: Callable[[], float] = monotonic_ms) -> None:
        """`where`: the key that the port's certificate is given by."""
        self._where = where
        self._clock = clock
        self._say_ms = float("-inf")
        self._unsaid = 0
        self.counts: Counter[Outcome] = Counter()

    def watch(self, context: ssl.SSLContext) -> None:
        """Hear of each handshake of sockets that listen with `context`."""
        heard = self._heard

        class Watched(ssl.SSLObject):
            def do_handshake(self) -> None:
                try:
                    super().do_handshake()
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    raise
                except ssl.SSLError as error:
                    heard(error)
                    raise
                heard(None)

        context.sslobject_class = Watched

    def _heard(self, error: ssl.SSLError | None) -> None:
        outcome = Outcome.DONE if error is None else outcome_of(error)
        self.counts[outcome] += 1
        if error is not None:
            self._say(outcome, error)

    def _say(self, outcome: Outcome, error: ssl.SSLError) -> None:
        self._unsaid += 1
        now_ms = self._clock()
        if now_ms < self._say_ms:
            return
        more = "" if self._unsaid == 1 else f"; {self._unsaid} failed since the last such line"
        detail = getattr(error, "verify_message", "") or _reason(error) or "no reason is given"
        _log.warning("%s: no TLS connection with a client: %s (%s)%s", self._where, _SAID[outcome], detail, more)
        self._unsaid = 0
        self._say_ms = now_ms + SAID_EVERY_MS


_SAID = {
    Outcome.NO_CERTIFICATE: "it shows no certificate",
    Outcome.WRONG_CERTIFICATE: "its certificate is not trusted; client_ca names those who may sign it",
    Outcome.REFUSED_BY_CLIENT: "it refuses ours; it may not know who signed it, or ask for another name",
    Outcome.NO_TLS: "it speaks no TLS; its URL may begin with http:// instead of https://",
    Outcome.NOTHING_IN_COMMON: "no version or cipher is known to both; with client_ca it is TLS 1.3, else 1.2 will do",
    Outcome.OTHER: "its handshake failed",
}


def outcome_of(error: ssl.SSLError) -> Outcome:
    """Why a handshake failed."""
    reason = _reason(error)
    return next((outcome for word, outcome in _WORDS if word in reason), Outcome.OTHER)


def _reason(error: ssl.SSLError) -> str:
    """OpenSSL's name of it; errors that Python itself makes have none."""
    return getattr(error, "reason", None) or ""
