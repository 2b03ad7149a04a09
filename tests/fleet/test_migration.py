"""A stream of a real llama.cpp whose process is killed goes on at the other one, and says what it would have said."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from urllib.parse import urlsplit

import psutil
import pytest

from support.told_streams import hear

pytestmark = pytest.mark.local

BODY = {
    "model": "first",
    "messages": [{"role": "user", "content": "Count from one to ninety, in words."}],
    "stream": True,
    "temperature": 0,
    "max_tokens": 300,
    "stream_options": {"include_usage": True},
}


def ask(url: str):
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(BODY).encode(), {"content-type": "application/json"}
    )
    return urllib.request.urlopen(request, timeout=120)


def process_at(up_fleet, url: str) -> psutil.Process:
    """The child of the fleet that listens there."""
    port = urlsplit(url).port
    for child in psutil.Process(up_fleet.process.pid).children(recursive=True):
        if any(c.laddr and c.laddr.port == port and c.status == "LISTEN" for c in child.net_connections("tcp")):
            return child
    raise AssertionError(f"nobody listens at {url}")


def test_the_stream_goes_on(up_fleet) -> None:
    with ask(up_fleet.url) as whole:
        expected = hear(whole.read())
    assert not expected.errors
    with ask(up_fleet.url) as stream:
        worker = stream.headers["x-pointsman-worker"]
        began = b"".join(stream.readline() for _ in range(60))
        os.kill(process_at(up_fleet, up_fleet.engine_url(worker)).pid, signal.SIGKILL)
        heard = hear(began + stream.read())
    assert heard.errors == []
    assert len({name[0] for name in heard.names}) == 1, "its id; llama.cpp tells another time in each event"
    assert (heard.texts, heard.roles, heard.finishes) == (expected.texts, expected.roles, expected.finishes)
    assert (heard.usages, heard.dones) == (expected.usages, 1)
    assert up_fleet.status()["requests"]["migrations_total"] == 1
    deadline = time.monotonic() + 60
    while any(worker["state"] != "ready" for worker in up_fleet.status()["workers"]):
        assert time.monotonic() < deadline, "the engine was not started again"
        time.sleep(0.1)
