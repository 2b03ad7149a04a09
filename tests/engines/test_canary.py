"""Canaries of real engines: they pass, nothing of them is cached, and they find a frozen engine that answers probes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from pointsman.core.ledger.events import CanaryResult
from pointsman.edge.cluster.canary import TOKENS, CanaryTarget, send_canary
from pointsman.edge.engines.adapter import EngineAdapter
from pointsman.edge.engines.detect import detect
from pointsman.edge.engines.http import EngineHttp
from pointsman.edge.engines.load import LoadReading

pytestmark = pytest.mark.engines


def now_ms() -> float:
    return 1000.0 * asyncio.get_running_loop().time()


async def target_of(http: EngineHttp) -> CanaryTarget:
    _, facts = await detect(http)
    target = CanaryTarget.of(http, facts, facts.models, 0)
    assert target is not None
    return target


async def test_it_passes(http) -> None:
    target = await target_of(http)
    outcomes = [await send_canary(target, 60.0, now_ms) for _ in range(2)]
    assert [outcome.result for outcome in outcomes] == [CanaryResult.PASSED] * 2, outcomes


async def test_chat_does_as_well(http) -> None:
    target = await target_of(http)
    target.path = "/v1/chat/completions"
    outcome = await send_canary(target, 60.0, now_ms)
    assert outcome.result is CanaryResult.PASSED, outcome


async def test_nothing_of_it_is_cached(vllm, session) -> None:
    http = EngineHttp(session, vllm.url, api_key=vllm.key, timeout_s=30.0)
    adapter, facts = await detect(http)
    target = CanaryTarget.of(http, facts, facts.models, 0)
    assert target is not None
    before = await at_rest(adapter, http)
    for _ in range(3):
        outcome = await send_canary(target, 60.0, now_ms)
        assert outcome.result is CanaryResult.PASSED, outcome
    after = await at_rest(adapter, http, generated=(before.generated_tokens_total or 0) + 3 * TOKENS)
    assert before.cached_tokens_total == after.cached_tokens_total


async def at_rest(adapter: EngineAdapter, http: EngineHttp, generated: int = 0) -> LoadReading:
    """What the engine tells once nobody asks anything of it, and it has counted so many tokens of answers."""
    async with asyncio.timeout(60.0):
        while True:
            (reading,) = await adapter.read_load(http)
            if not reading.running + reading.waiting and (reading.generated_tokens_total or 0) >= generated:
                return reading
            await asyncio.sleep(0.02)


@contextlib.contextmanager
def frozen(leader: int) -> Iterator[None]:
    """All of a group of processes but its first one, which answers HTTP."""
    others = [pid for pid in _group(leader) if pid != leader]
    assert others
    for pid in others:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in others:
            os.kill(pid, signal.SIGCONT)


def _group(leader: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(int(folder.name)) == os.getpgid(leader):
                found.append(int(folder.name))
    return found


async def test_a_frozen_engine_whose_server_answers_is_late(vllm, session) -> None:
    http = EngineHttp(session, vllm.url, api_key=vllm.key, timeout_s=30.0)
    target = await target_of(http)
    with frozen(vllm.process.pid):
        assert (await http.get("/health")).status == 200
        outcome = await send_canary(target, 3.0, now_ms)
        assert outcome.result is CanaryResult.LATE, outcome
    outcome = await send_canary(target, 60.0, now_ms)
    assert outcome.result is CanaryResult.PASSED, outcome
