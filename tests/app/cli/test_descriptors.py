"""Descriptors and the connections that fit into them."""

from __future__ import annotations

import logging
import resource
import subprocess
import sys

import pytest

from pointsman.app.cli import descriptors
from pointsman.app.cli.descriptors import (
    MOST_DESCRIPTORS,
    connections_that_fit,
    max_connections,
    raise_descriptor_limit,
)


class Limits:
    """The system's limits, which refuse more than `most`."""

    def __init__(self, soft: int, hard: int, most: int) -> None:
        self.soft, self.hard, self.most = soft, hard, most

    def get(self, which: int) -> tuple[int, int]:
        return self.soft, self.hard

    def set(self, which: int, limits: tuple[int, int]) -> None:
        if limits[0] > self.most:
            raise ValueError("not allowed")
        self.soft = limits[0]


@pytest.mark.parametrize(
    ("platform", "soft", "hard", "most", "result"),
    [
        ("linux", 1024, 4096, 4096, 4096),
        ("linux", 4096, 4096, 4096, 4096),
        ("linux", 1024, resource.RLIM_INFINITY, 10**9, MOST_DESCRIPTORS),
        ("linux", 1024, 10**9, 10**9, MOST_DESCRIPTORS),
        ("linux", resource.RLIM_INFINITY, resource.RLIM_INFINITY, 10**9, MOST_DESCRIPTORS),
        ("linux", 2 * MOST_DESCRIPTORS, 10**9, 10**9, 2 * MOST_DESCRIPTORS),
        ("linux", 1024, 4096, 1024, 1024),
        ("darwin", 256, resource.RLIM_INFINITY, 10_240, 10_240),
        ("darwin", 256, resource.RLIM_INFINITY, 10**9, MOST_DESCRIPTORS),
    ],
)
def test_the_soft_limit_is_raised(
    monkeypatch: pytest.MonkeyPatch, platform: str, soft: int, hard: int, most: int, result: int
) -> None:
    limits = Limits(soft, hard, most)
    monkeypatch.setattr(descriptors.resource, "getrlimit", limits.get)
    monkeypatch.setattr(descriptors.resource, "setrlimit", limits.set)
    monkeypatch.setattr(descriptors.sys, "platform", platform)
    assert raise_descriptor_limit() == result
    assert limits.hard == hard


@pytest.mark.parametrize(("count", "connections"), [(1024, 412), (MOST_DESCRIPTORS, 524_188), (200, 1), (10, 1)])
def test_connections_that_fit(count: int, connections: int) -> None:
    assert max_connections(count) == connections


def test_the_log_says_what_fits(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(descriptors, "_raise", lambda: 1024)
    with caplog.at_level(logging.INFO, "pointsman.cli"):
        assert connections_that_fit() == 412
    assert "1024 descriptors can be open" in caplog.text
    assert "at most 412 client connections at once" in caplog.text


def test_a_real_process() -> None:
    script = (
        "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (256, 1024));"
        "from pointsman.app.cli.descriptors import raise_descriptor_limit as f;"
        "print(f(), r.getrlimit(r.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1024 (1024, 1024)"
