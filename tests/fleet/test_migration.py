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

TASKS = (
    "Count from one to ninety, in words.",
    "Name the months of the year and what each is known for.",
    "Tell me about the sea.",
    "List twenty animals.",
)
DIVERGED = "another run of it says something else than the first one did"


def ask(url: str, task: str):
    body = {
        "model": "first",
        "messages": [{"role": "user", "content": task}],
        "stream": True,
        "temperature": 0,
        "max_tokens": 300,
        # A prompt that is cached in part is computed in other batches, which rounds otherwise.
        "cache_prompt": False,
        "stream_options": {"include_usage": True},
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    return urllib.request.urlopen(request, timeout=120)


def process_at(up_fleet, url: str) -> psutil.Process:
    """The child of the fleet that listens there."""
    port = urlsplit(url).port
    for child in psutil.Process(up_fleet.process.pid).children(recursive=True):
        if any(c.laddr and c.laddr.port == port and c.status == "LISTEN" for c in child.net_connections("tcp")):
            return child
    raise AssertionError(f"nobody listens at {url}")


def heard_whole(up_fleet, task: str) -> bool:
    """Kill the engine of a stream: whether it went on exactly. llama.cpp promises the same text twice to nobody: where
    the second run has said something else by then, the client is told so; later it may, and what was sent stays."""
    with ask(up_fleet.url, task) as whole:
        expected = hear(whole.read())
    assert not expected.errors
    with ask(up_fleet.url, task) as stream:
        worker = stream.headers["x-pointsman-worker"]
        began = b"".join(stream.readline() for _ in range(60))
        os.kill(process_at(up_fleet, up_fleet.engine_url(worker)).pid, signal.SIGKILL)
        heard = hear(began + stream.read())
    deadline = time.monotonic() + 120
    while any(worker["state"] != "ready" for worker in up_fleet.status()["workers"]):
        assert time.monotonic() < deadline, "the engine was not started again"
        time.sleep(0.1)
    if heard.errors:
        assert heard.errors == [f"the stream broke: {DIVERGED}"]
        assert heard.dones == 0
        return False
    assert len({name[0] for name in heard.names}) == 1, "its id; llama.cpp tells another time in each event"
    ((place, text),) = heard.texts.items()
    assert text.startswith(hear(began).texts[place])
    assert (heard.roles, heard.dones, len(heard.usages)) == (expected.roles, 1, 1)
    return (heard.texts, heard.finishes, heard.usages) == (expected.texts, expected.finishes, expected.usages)


def test_the_stream_goes_on(up_fleet) -> None:
    assert any(heard_whole(up_fleet, task) for task in TASKS)
    assert up_fleet.status()["requests"]["migrations_total"] >= 1
