"""Runs the peer's side of the decision benchmark in the peer's environment."""

from __future__ import annotations

import os
import subprocess

import msgspec

from harness.histogram import Percentiles
from harness.peer_spec import PeerSpec
from harness.processes import BenchmarkError
from harness.subjects import DYNAMO, harness_env, installed_version


def version() -> str | None:
    """Of the peer; None where it is not installed, which a line says."""
    found = installed_version(DYNAMO, "ai-dynamo")
    if found is None:
        print("skipped: Dynamo is not installed (benchmarks/install_peers.sh)", flush=True)
    return found


def measure(spec: PeerSpec) -> dict[str, Percentiles]:
    """One round: percentiles by `workers/tokens`. Raises BenchmarkError."""
    command = [str(DYNAMO / "bin/python"), "-m", "harness.peer_decisions", msgspec.json.encode(spec).decode()]
    env = {**os.environ, **harness_env(), "DYN_LOG": "error"}
    done = subprocess.run(command, capture_output=True, check=False, env=env)
    if done.returncode:
        raise BenchmarkError(f"the peer's decisions failed:\n{done.stderr.decode(errors='replace')[-2000:]}")
    return msgspec.json.decode(done.stdout, type=dict[str, Percentiles])
