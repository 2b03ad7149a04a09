"""AdminTrust: how admin ports with https are checked, and what they are shown; from what the environment names."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path

from pointsman.core.model.errors import ConfigError
from pointsman.edge.wire.trust import Trust, load_chain

ADMIN_CERTIFICATE_VARIABLE = "POINTSMAN_ADMIN_CERTIFICATE"
"""Environment variable that names the PEM file of a certificate and its key, for admin ports that want one."""


class AdminTrust:
    """Raises ConfigError when a file can't be used, here and never again."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        file = environ.get(ADMIN_CERTIFICATE_VARIABLE, "").strip()
        authorities = environ.get("SSL_CERT_FILE", "").strip()
        self._files = [Path(name) for name in (file, authorities) if name]
        self._trust = Trust(lambda: _context(file))

    @property
    def context(self) -> ssl.SSLContext:
        """For connections that are made now."""
        return self._trust.context

    def files(self) -> list[Path]:
        """All that are read."""
        return list(self._files)

    def renew(self) -> list[str]:
        """Read the files again; what is wrong with them, and then what was read before holds."""
        try:
            self._trust.renew()
        except ConfigError as error:
            return [str(error)]
        return []


def _context(file: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if file:
        load_chain(context, file, None, ADMIN_CERTIFICATE_VARIABLE)
    return context
