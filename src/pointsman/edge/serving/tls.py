"""TLS contexts from the configuration."""

from __future__ import annotations

import ssl

from pointsman.core.model.errors import ConfigError
from pointsman.edge.configuration.control_plane import EngineTls, Tls


def listen_context(tls: Tls | None) -> ssl.SSLContext | None:
    """Context to listen with. Raises ConfigError when the certificate or key can't be used."""
    if tls is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(tls.certificate, tls.key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"control-plane.tls: can't use certificate {tls.certificate!r} with key {tls.key!r}: {error}"
        ) from error
    return context


def engine_context(tls: EngineTls | None) -> ssl.SSLContext | None:
    """Context to check engines with; None: the system's authorities. Raises ConfigError when the file can't be used."""
    if tls is None:
        return None
    try:
        return ssl.create_default_context(cafile=tls.ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"control-plane.engine_tls.ca: can't use {tls.ca!r}: {error}") from error
