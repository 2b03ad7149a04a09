"""EngineUrl: where an engine listens, checked."""

from __future__ import annotations

from typing import ClassVar
from urllib.parse import urlsplit

_DEFAULT_PORT = {"http": 80, "https": 443}


class EngineUrl(str):
    """Base URL of an engine without a trailing slash: `http://host:port` or `https://host:port`."""

    __slots__ = ()

    expected: ClassVar[str] = "the base URL of an engine, such as http://10.0.0.1:8000"

    @classmethod
    def parse(cls, value: object) -> EngineUrl:
        """Read and check a URL. Raises ValueError that says what is expected instead."""
        if not isinstance(value, str) or not value.strip():
            raise ValueError(cls.expected)
        text = value.strip()
        if not (text.isascii() and text.isprintable()):
            raise ValueError(f"{cls.expected}, in printable ASCII (an international name in its xn-- form)")
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError as error:
            raise ValueError(f"{cls.expected} ({error})") from None
        if parts.scheme not in _DEFAULT_PORT or not parts.hostname or any(c.isspace() for c in text):
            raise ValueError(cls.expected)
        if port == 0:
            raise ValueError(f"{cls.expected} (port 0 is no place to connect to)")
        if parts.username is not None or parts.password is not None:
            raise ValueError(f"{cls.expected}, without user and password; an engine's key goes into api_key_env")
        if parts.path not in ("", "/") or parts.query or parts.fragment:
            raise ValueError(f"{cls.expected}, without a path (no /v1)")
        return cls(f"{parts.scheme}://{parts.netloc.lower()}")

    @classmethod
    def at(cls, host: str, port: int) -> EngineUrl:
        """Of plain HTTP at an address; one that listens everywhere is called on this computer."""
        if host in ("0.0.0.0", "::", ""):
            host = "127.0.0.1"
        return cls.parse(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")

    @property
    def host_and_port(self) -> str:
        """`host:port`, with the scheme's default port where the URL names none; an engine's default name."""
        parts = urlsplit(self)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        return f"{host}:{parts.port or _DEFAULT_PORT[parts.scheme]}"
