"""Runs the load client as a process pinned to the harness's core."""

from __future__ import annotations

import http.client
import os
import subprocess

import msgspec

from harness.load_spec import LoadReport, LoadSpec
from harness.processes import BenchmarkError
from harness.subjects import HARNESS_CORE, harness_command, harness_env


def run_load(spec: LoadSpec) -> LoadReport:
    """One load run. Raises BenchmarkError if the client fails or nothing at all was answered."""
    argument = msgspec.json.encode(spec).decode()
    command = ["taskset", "-c", str(HARNESS_CORE), *harness_command("load_client", argument)]
    done = subprocess.run(command, capture_output=True, check=False, env={**os.environ, **harness_env()})
    if done.returncode:
        raise BenchmarkError(f"the load client failed:\n{done.stderr.decode(errors='replace')[-2000:]}")
    report = msgspec.json.decode(done.stdout, type=LoadReport)
    if not report.events_per_s:
        raise BenchmarkError(f"port {spec.port} answered nothing; last error: {report.last_error}")
    return report


def set_pace(engine: int, itl_ms: int) -> None:
    """Time between tokens of the mock engines."""
    connection = http.client.HTTPConnection("127.0.0.1", engine, timeout=5)
    try:
        connection.request("POST", "/mock/pace", msgspec.json.encode({"itl_ms": itl_ms}))
        if connection.getresponse().status != 200:
            raise BenchmarkError("the mock engine refused the pace")
    finally:
        connection.close()
