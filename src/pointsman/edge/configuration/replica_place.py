"""ReplicaPlace: where a front end speaks to the others, checked."""

from __future__ import annotations

from typing import ClassVar
from urllib.parse import urlsplit

_ANYWHERE = ("*", "0.0.0.0", "::")


class ReplicaPlace(str):
    """`tcp://host:port`."""

    __slots__ = ()

    expected: ClassVar[str] = "an address with a port, such as tcp://10.0.0.1:8090"

    @classmethod
    def parse(cls, value: object) -> ReplicaPlace:
        """Read and check one. Raises ValueError that says what is expected instead."""
        if not isinstance(value, str):
            raise ValueError(cls.expected)
        text = value.strip()
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            raise ValueError(cls.expected) from None
        if parts.scheme != "tcp" or not parts.hostname or port is None or text != f"tcp://{parts.netloc}":
            raise ValueError(cls.expected)
        if "@" in parts.netloc or not text.isascii() or any(c.isspace() for c in text):
            raise ValueError(cls.expected)
        return cls(text)

    @property
    def host(self) -> str:
        """Without brackets."""
        return urlsplit(self).hostname or ""

    @property
    def port(self) -> int:
        """Its port."""
        return urlsplit(self).port or 0

    @property
    def is_loopback(self) -> bool:
        """Only this machine can connect to it."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    @property
    def is_anywhere(self) -> bool:
        """A place to listen at all addresses, which nobody can connect to."""
        return self.host in _ANYWHERE

    def with_host(self, host: str) -> ReplicaPlace:
        """The same port."""
        return ReplicaPlace(f"tcp://[{host}]:{self.port}" if ":" in host else f"tcp://{host}:{self.port}")

    def with_port(self, port: int) -> ReplicaPlace:
        """The same host."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return ReplicaPlace(f"tcp://{host}:{port}")
