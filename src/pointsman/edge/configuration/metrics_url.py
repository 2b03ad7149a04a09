"""MetricsUrl: a page of Prometheus metrics, checked."""

from __future__ import annotations

from typing import ClassVar
from urllib.parse import urlsplit

from pointsman.edge.configuration.engine_url import EngineUrl


class MetricsUrl(str):
    """The whole URL of a page; without a path that of `/metrics`."""

    __slots__ = ()

    expected: ClassVar[str] = "the URL of a page of metrics, such as http://10.0.0.1:9400/metrics"

    @classmethod
    def parse(cls, value: object) -> MetricsUrl:
        """Read and check a URL. Raises ValueError that says what is expected instead."""
        if not isinstance(value, str):
            raise ValueError(cls.expected)
        try:
            parts = urlsplit(value.strip())
            base = EngineUrl.parse(f"{parts.scheme}://{parts.netloc}")
        except ValueError:
            raise ValueError(f"{cls.expected}, without user and password") from None
        page = parts.path.rstrip("/") or "/metrics"
        if parts.fragment or not (page + parts.query).isascii() or any(c.isspace() for c in page + parts.query):
            raise ValueError(cls.expected)
        return cls(base + page + (f"?{parts.query}" if parts.query else ""))

    @property
    def base(self) -> str:
        """`http://host:port`."""
        parts = urlsplit(self)
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def page(self) -> str:
        """What comes after the base."""
        return self.removeprefix(self.base)
