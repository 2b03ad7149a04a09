"""ListenTls: the certificate that a port listens with, read again while it listens."""

from __future__ import annotations

import ssl
from pathlib import Path

from pointsman.core.model.errors import ConfigError
from pointsman.edge.configuration.tls import Tls
from pointsman.edge.serving.handshakes import Handshakes
from pointsman.edge.wire.trust import file_reason, load_chain


class ListenTls:
    """Of one port. Raises ConfigError when a file can't be used.

    A listening socket keeps the context that it began with, and a context can't forget an authority. So each handshake
    is moved to the newest context before anything of the certificate is sent: that happens in the callback for the
    server's name, which comes whether a name is asked for or not.
    """

    def __init__(self, tls: Tls, where: str = "control-plane.tls") -> None:
        self._tls = tls
        self._where = where
        self.name = where.rpartition(".")[2]
        """For metrics: `tls` or `admin_tls`."""
        self.context = self._made()
        """To listen with."""
        self._newest = self.context
        self.context.sni_callback = self._choose
        self.handshakes = Handshakes(where)
        """How they end."""
        self.handshakes.watch(self.context)

    def renew(self) -> None:
        """Read the files again, for handshakes from now on. Raises ConfigError, and nothing has changed."""
        self._newest = self._made()

    def files(self) -> list[Path]:
        """All that are read."""
        tls = self._tls
        return [Path(name) for name in (tls.certificate, tls.key, tls.client_ca) if name is not None]

    def _choose(self, handshake: ssl.SSLSocket | ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        if self._newest is not context:
            handshake.context = self._newest

    def _made(self) -> ssl.SSLContext:
        tls = self._tls
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        load_chain(context, tls.certificate, tls.key, self._where)
        if tls.client_ca is not None:
            self._check_clients(context, tls.client_ca)
        return context

    def _check_clients(self, context: ssl.SSLContext, authorities: str) -> None:
        try:
            context.load_verify_locations(authorities)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"{self._where}.client_ca: can't use {authorities!r}: {file_reason(error)}") from error
        required = self._tls.client_certificates == "required"
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        # A session that is resumed is not checked again: it would outlive an authority that was removed.
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0


def listen_tls(tls: Tls | None, where: str = "control-plane.tls") -> ListenTls | None:
    """None: plain HTTP. Raises ConfigError when a file can't be used."""
    return None if tls is None else ListenTls(tls, where)
