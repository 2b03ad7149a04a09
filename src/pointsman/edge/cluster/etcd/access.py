"""EtcdAccess: where etcd is, and how to be let in."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """Endpoints of one cluster. `ssl_context` is for those with https; None trusts what the system trusts."""

    endpoints: tuple[str, ...]
    """Base URLs of client ports, tried in this order."""
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ssl_context: ssl.SSLContext | None = None
    timeout_s: float = 3.0
    """For one endpoint to answer."""
