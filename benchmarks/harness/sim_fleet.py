"""Simulated engines in real time behind `pointsman serve`, and a client that replays a trace of block ids there."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec

from harness import kv_status
from harness.processes import BenchmarkError, Processes, free_ports
from pointsman.core.timing.profile import Profile
from pointsman.core.workload.trace import Trace, TraceRequest

MODEL = "sim"
_TOKENS = range(1_000, 30_000)
_LATE_MS = 100.0
"""Requests sent so much later than the trace says tell of a busy machine, not of the fleet."""

_CHECKS_S = 3.0
"""In which the front end has checked the events of each engine; a cache emptied meanwhile looks like lost events."""


@dataclass(frozen=True, slots=True)
class EngineSize:
    """Of each engine."""

    num_blocks: int
    block_tokens: int
    max_batched_tokens: int


@dataclass(frozen=True, slots=True)
class Answered:
    """One request of the trace."""

    ttft_ms: float
    e2e_ms: float
    cached_tokens: int
    late_ms: float
    """Sent so much after its time."""


def profile_file(profile: Profile, folder: Path) -> Path:
    """A file that `pointsman engine --profile` reads."""
    step = profile.step
    document = {
        "schema": 1,
        "name": profile.name,
        "step": {
            "a_ms": step.a_ms,
            "b_ms_per_sequence": step.b_ms_per_sequence,
            "c_ms_per_1000_context_tokens": step.c_ms_per_1000_context_tokens,
            "d_ms_per_prefill_token": step.d_ms_per_prefill_token,
        },
        "kv_tokens": profile.kv_tokens,
        "kv_bytes_per_token": profile.kv_bytes_per_token,
        "gpu": profile.gpu,
        "model": profile.model,
        "engine": profile.engine,
        "tensor_parallel": profile.tensor_parallel,
        "source": profile.source,
    }
    path = folder / "profile.json"
    path.write_bytes(msgspec.json.encode(document))
    return path


class SimFleet:
    """Engines and a front end."""

    def __init__(self, group: Processes, profile: Profile, size: EngineSize, workers: int) -> None:
        self._workers = workers
        self._engines = free_ports(workers)
        file = profile_file(profile, group.directory)
        main = [sys.executable, "-m", "pointsman.app.cli.main"]
        for number, port in enumerate(self._engines):
            command = [*main, "engine", "--kind", "sim", "--port", str(port), "--profile", str(file), "--model", MODEL]
            command += ["--num-blocks", str(size.num_blocks), "--block-size", str(size.block_tokens)]
            command += ["--max-batched-tokens", str(size.max_batched_tokens)]
            command += ["--kv-events", "tcp://127.0.0.1:*", "--replay", "tcp://127.0.0.1:*"]
            group.start(f"engine-{number}", command)
        for number, port in enumerate(self._engines):
            group.await_http(f"engine-{number}", port, "/health")
        self.port, self._admin_port = free_ports(2)
        command = [*main, "serve", "--port", str(self.port), "--admin-port", str(self._admin_port)]
        for port in self._engines:
            command += ["--engine", f"http://127.0.0.1:{port}"]
        group.start("front-end", command)
        group.await_http("front-end", self.port, "/ready", contains=f'"workers":{workers}')
        kv_status.await_exact(self._admin_port, workers)
        time.sleep(_CHECKS_S)

    async def begin(self, policy: str) -> None:
        """Empty caches, and this policy."""
        async with aiohttp.ClientSession(raise_for_status=True) as session:
            for port in self._engines:
                async with session.post(f"http://127.0.0.1:{port}/reset_prefix_cache"):
                    pass
            async with session.put(f"http://127.0.0.1:{self._admin_port}/v1/policy", json={"policy": policy}):
                pass
        await asyncio.sleep(0.5)  # until the events are there

    async def behind_ms(self) -> float:
        """By how much steps of all engines took longer than modelled, since they started."""
        behind = 0.0
        async with aiohttp.ClientSession(raise_for_status=True) as session:
            for port in self._engines:
                async with session.get(f"http://127.0.0.1:{port}/sim/requests") as answer:
                    behind += (await answer.json())["behind_ms"]
        return behind

    async def replay(self, trace: Trace) -> list[Answered]:
        """Send each request when the trace says, whatever became of others. Raises BenchmarkError when one fails."""
        # Made before, so that making them delays nobody.
        bodies = [_body(trace, request) for request in trace.requests]
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            started_s = time.perf_counter() + 0.1
            tasks = [
                asyncio.create_task(self._one(session, body, started_s + request.at_ms / 1000))
                for body, request in zip(bodies, trace.requests, strict=True)
            ]
            answered = await asyncio.gather(*tasks)
        kv_status.await_exact(self._admin_port, self._workers)
        return answered

    async def _one(self, session: aiohttp.ClientSession, body: bytes, due_s: float) -> Answered:
        await asyncio.sleep(due_s - time.perf_counter())
        late_ms = (time.perf_counter() - due_s) * 1000
        first_s: float | None = None
        usage: dict[str, object] = {}
        headers = {"content-type": "application/json"}
        async with session.post(f"http://127.0.0.1:{self.port}/v1/completions", data=body, headers=headers) as answer:
            if answer.status != 200:
                raise BenchmarkError(f"a request was answered with {answer.status}: {(await answer.text())[:200]}")
            async for line in answer.content:
                if not line.startswith(b"data: {"):
                    continue
                if first_s is None:
                    first_s = time.perf_counter()
                if b'"usage":{' in line:
                    usage = msgspec.json.decode(line[6:])["usage"]
        if first_s is None:
            raise BenchmarkError("a stream had no events")
        details = usage.get("prompt_tokens_details")
        cached = int(details.get("cached_tokens") or 0) if isinstance(details, dict) else 0
        return Answered((first_s - due_s) * 1000, (time.perf_counter() - due_s) * 1000, cached, late_ms)


def late(answered: list[Answered]) -> int:
    """Requests that the client could not send in time."""
    return sum(one.late_ms > _LATE_MS for one in answered)


def _body(trace: Trace, request: TraceRequest) -> bytes:
    tokens = [token for block in request.block_ids for token in _block(block, trace.block_tokens)]
    body = {
        "model": MODEL,
        "prompt": tokens[: request.prompt_tokens],
        "max_tokens": request.output_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return json.dumps(body, separators=(",", ":")).encode()


def _block(number: int, size: int) -> list[int]:
    """Tokens of a block: the same for the same id."""
    return random.Random(f"block {number}").choices(_TOKENS, k=size)
