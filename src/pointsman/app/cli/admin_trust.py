"""AdminTrust: how admin ports with https are checked, and what they are shown; from what the environment names."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping

from pointsman.edge.wire.trust import Trust, load_chain

ADMIN_CERTIFICATE_VARIABLE = "POINTSMAN_ADMIN_CERTIFICATE"
"""Environment variable that names the PEM file of a certificate and its key, for admin ports that want one."""


class AdminTrust(Trust):
    """Raises ConfigError when a file can't be used, here and never again."""

    __slots__ = ()

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        file = environ.get(ADMIN_CERTIFICATE_VARIABLE, "").strip()
        authorities = environ.get("SSL_CERT_FILE", "").strip()
        super().__init__(lambda: _context(file), (name for name in (file, authorities) if name))


def _context(file: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if file:
        load_chain(context, file, None, ADMIN_CERTIFICATE_VARIABLE)
    return context
