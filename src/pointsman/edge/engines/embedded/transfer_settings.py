"""How an embedded engine moves KV."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Literal

from pointsman.core.model.errors import ConfigError
from pointsman.edge.transfer.negotiation import AUTO, TCP, TRANSPORTS

CODECS = ("none", "f16", "int8", "zstd", AUTO)
LEAST_LEASE_S, MOST_LEASE_S = 0.05, 3600.0


@dataclass(frozen=True, slots=True)
class TransferSettings:
    """Raises ConfigError for what can't be."""

    host: str = "127.0.0.1"
    """Where it listens for transfers, and where others are told to find it."""
    port: int = 0
    """0: any free one."""
    transport: str = AUTO
    """auto: the best of nixl, shm, tcp that both sides have."""
    codec: str = "none"
    """Of blocks that are fetched over TCP; auto: where it pays, f16 or zstd."""
    lease_s: float = 30.0
    """How long blocks are held for others; those who wait or read extend it."""
    load_failure: Literal["recompute", "fail"] = "recompute"
    """What becomes of a request whose KV does not come."""

    def __post_init__(self) -> None:
        if self.transport not in (AUTO, *TRANSPORTS):
            raise ConfigError(f"--kv-transport {self.transport}: not known; there are {', '.join((AUTO, *TRANSPORTS))}")
        if self.codec not in CODECS:
            raise ConfigError(f"--kv-codec {self.codec}: not known; there are {', '.join(CODECS)}")
        if self.codec == "zstd" and importlib.util.find_spec("zstandard") is None:
            raise ConfigError("--kv-codec zstd: its package is missing: pip install 'pointsman[embedded]'")
        if self.codec not in ("none", AUTO) and self.transport not in (AUTO, TCP):
            raise ConfigError(
                f"--kv-codec {self.codec}: is for KV that comes over tcp, and --kv-transport is {self.transport}"
            )
        if not LEAST_LEASE_S <= self.lease_s <= MOST_LEASE_S:
            raise ConfigError(f"--kv-lease-s {self.lease_s:g}: must be between {LEAST_LEASE_S:g} and {MOST_LEASE_S:g}")


USUAL_TRANSFERS = TransferSettings()
"""What an engine does that is told nothing."""


def transfer_address(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`, `[v6]:PORT`, `HOST` or `:PORT`. Raises ConfigError."""
    if text.count(":") > 1 and not text.startswith("["):
        raise ConfigError(f"--kv-transfer {text}: an IPv6 address stands in brackets: [ADDRESS]:PORT")
    host, colon, port = text.rpartition(":")
    if not colon or (host.startswith("[") and not host.endswith("]")):
        host, port = text, "0"
    try:
        number = int(port or "0")
    except ValueError:
        raise ConfigError(f"--kv-transfer {text}: {port!r} is no port; give HOST:PORT") from None
    if not 0 <= number < 65536:
        raise ConfigError(f"--kv-transfer {text}: {number} is no port; give HOST:PORT")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if host in ("0.0.0.0", "::"):
        raise ConfigError(f"--kv-transfer {text}: others are told to come there; give an address that they can reach")
    return host, number
