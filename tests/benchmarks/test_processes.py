from __future__ import annotations

import sys

import pytest

from harness import process_stats
from harness.processes import BenchmarkError, free_ports, processes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the harness reads /proc and pins with taskset")

SERVE = """
import http.server, sys
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.SimpleHTTPRequestHandler).serve_forever()
"""


def test_a_process_is_awaited_pinned_and_stopped() -> None:
    (port,) = free_ports(1)
    with processes() as group:
        pid = group.start(
            "files", [sys.executable, "-c", SERVE, str(port)], core=0, env={"PYTHONDONTWRITEBYTECODE": "1"}
        )
        group.await_http("files", port, "/", timeout_s=20)
        assert group.pids() == (pid,)
        with pytest.raises(BenchmarkError, match="not ready after 0 s"):
            group.await_http("files", port, "/", contains="never there", timeout_s=0)
        directory = group.directory
    assert process_stats.tree(pid) == []
    assert not directory.exists()


def test_a_process_that_ends_early_is_reported_with_its_last_words() -> None:
    (port,) = free_ports(1)
    with processes() as group:
        group.start("broken", [sys.executable, "-c", "raise SystemExit('no such policy')"])
        with pytest.raises(BenchmarkError, match="broken ended with status 1:\nno such policy"):
            group.await_http("broken", port, "/", timeout_s=20)


def test_free_ports_differ() -> None:
    assert len(set(free_ports(5))) == 5
