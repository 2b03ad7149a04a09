"""A probe of a link over NIXL, in the environment that has its package."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

pytestmark = pytest.mark.engines

_SOURCES = Path(__file__).parents[2] / "src"
_PROBE = """
import asyncio, sys, time
sys.path.insert(0, {sources!r})
sys.path.append({packages!r})
import msgspec
from pointsman.edge.transfer.probe.client import measure
from pointsman.edge.transfer.probe.server import ProbeServer, Slot

async def main():
    server = ProbeServer(Slot(time.monotonic), ("nixl", "shm", "tcp"), host="here")
    await server.start("127.0.0.1", 0)
    ticket = server.ticket()
    sizes = (65536, 1048576)
    found = await measure("127.0.0.1", server.port, ticket, sizes_bytes=sizes, transports=("nixl", "tcp"), size_s=10)
    await server.close()
    print(msgspec.json.encode(found).decode())

asyncio.run(main())
"""


def test_a_link_is_probed_over_nixl_in_both_directions() -> None:
    python = os.environ.get("POINTSMAN_ENGINES_PYTHON")
    if not python:
        pytest.skip("POINTSMAN_ENGINES_PYTHON is not set; scripts/test-engines sets it")
    if subprocess.run([python, "-c", "import nixl"], check=False, capture_output=True).returncode:
        pytest.skip(f"nixl is not installed for {python}: pip install --no-deps nixl nixl-cu12")
    script = _PROBE.format(sources=str(_SOURCES), packages=sysconfig.get_paths()["purelib"])
    ran = subprocess.run([python, "-c", script], check=True, capture_output=True, text=True, timeout=120)
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["transport"] == "nixl"
    for way in ("forth", "back"):
        assert [sample["size_bytes"] for sample in found[way]] == [65536, 1048576]
        assert all(sample["took_ms"] > 0 for sample in found[way])
    assert "broke" not in found
