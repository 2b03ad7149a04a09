"""Whether a front end truly looks prompts up exactly: asked of its status, so that nothing else is ever measured."""

from __future__ import annotations

import http.client
import time

import msgspec

from harness.processes import BenchmarkError

_READY_S = 30.0


class Kv(msgspec.Struct):
    """A worker's KV events as the front end sees them."""

    state: str
    reason: str
    confidence: float
    blocks: dict[str, int]


class Worker(msgspec.Struct):
    """One worker."""

    id: str
    requests_total: int
    predicted_cached_tokens: int
    drift: float | None
    kv: Kv


class Status(msgspec.Struct):
    """The parts of `/v1/status` that are looked at."""

    policy: str
    workers: list[Worker]


def read(admin_port: int) -> Status:
    """What the front end says now. Raises BenchmarkError."""
    connection = http.client.HTTPConnection("127.0.0.1", admin_port, timeout=5)
    try:
        connection.request("GET", "/v1/status")
        return msgspec.json.decode(connection.getresponse().read(), type=Status)
    except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
        raise BenchmarkError(f"the front end's status can't be read: {error}") from error
    finally:
        connection.close()


def fault(status: Status, workers: int) -> str | None:
    """Why prompts are not looked up exactly at all of so many workers; None if they are."""
    if len(status.workers) != workers:
        return f"{len(status.workers)} of {workers} workers have joined"
    for worker in status.workers:
        kv = worker.kv
        if kv.state != "complete" or kv.confidence < 1.0 or not kv.blocks.get("gpu"):
            return f"{worker.id}: KV events {kv.state} ({kv.reason}), confidence {kv.confidence}, blocks {kv.blocks}"
    return None


def await_exact(admin_port: int | None, workers: int) -> None:
    """Wait until every worker's own word is used. Raises BenchmarkError after half a minute."""
    assert admin_port is not None
    deadline = time.monotonic() + _READY_S
    while (why := fault(read(admin_port), workers)) is not None:
        if time.monotonic() > deadline:
            raise BenchmarkError(f"prompts are not looked up exactly: {why}")
        time.sleep(0.1)


def check_used(admin_port: int | None, workers: int) -> int:
    """After the load: still exact, and cached tokens were predicted. Returns how many."""
    assert admin_port is not None
    status = read(admin_port)
    why = fault(status, workers)
    predicted = sum(worker.predicted_cached_tokens for worker in status.workers)
    if why is None and not predicted:
        why = "no cached token was ever predicted"
    if why is not None:
        raise BenchmarkError(f"what was measured is not exact routing: {why}")
    return predicted
