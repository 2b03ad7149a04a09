"""Two real vLLM: one computes prompts, the other one reads their KV through NIXL. The text stays the same."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.request
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from pointsman.core.model.kv_shape import HandShake
from pointsman.core.model.transfer import TransferMode, TransferRules
from pointsman.core.model.worker import Role
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.serving.frontend import Frontend
from pointsman.edge.serving.settings import FrontendSettings
from pointsman.edge.wire.http1_client import Origin, UpstreamPool
from support.fetch import Response, fetch
from support.patient_timeouts import PATIENT_TIMEOUTS
from support.told_streams import hear
from support.waiting import eventually

pytestmark = pytest.mark.engines

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODY: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": 40, "ignore_eos": True}
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {"messages": [{"role": "user", "content": "How long is a piece of string? " * 30}]}),
    "completion": (COMPLETIONS, {"prompt": "The quick brown fox jumps over the lazy dog. " * 20}),
    "token ids": (COMPLETIONS, {"prompt": [7 + place % 900 for place in range(300)]}),
}
FROM_ELSEWHERE = 'source="external_kv_transfer"'
LIMIT_S = 120.0
"""Far less than the lease for which an engine keeps what nobody fetches."""


def call(server: Any, path: str, body: dict[str, Any] | None = None) -> bytes:
    """Asks an engine directly; a body makes it a POST."""
    headers = {"Authorization": f"Bearer {server.key}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(server.url + path, data, headers), timeout=LIMIT_S) as answer:
        return bytes(answer.read())


def metric(server: Any, name: str, label: str = "") -> float:
    """Sum of an engine's samples of one name."""
    lines = call(server, "/metrics").decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name + "{") and label in line)


def blocks(server: Any) -> int:
    """That are in use there, or kept for another engine."""
    return round(metric(server, "vllm:kv_cache_usage_perc") * 299)


def said(path: str, body: bytes) -> str:
    choice = json.loads(body)["choices"][0]
    return str(choice["message"]["content"] if path == CHAT else choice["text"])


@pytest.fixture(scope="module")
def alone(apart: dict[str, Any]) -> dict[str, str]:
    """What one engine says that computes all by itself."""
    return {name: said(path, call(apart["p"], path, BODY | body)) for name, (path, body) in ASKED.items()}


@pytest.fixture
async def front_end(apart: dict[str, Any]) -> AsyncIterator[Frontend]:
    roles = {"p": Role.PREFILL, "d": Role.DECODE}
    sources = tuple(
        WorkerSource(name=name, url=server.url, api_key=server.key, role=roles[name]) for name, server in apart.items()
    )
    rules = TransferRules(TransferMode.ALWAYS)
    # Only a request finds out who is dead: nobody probes again while a test lasts.
    frontend = Frontend(
        FrontendSettings(
            sources=sources,
            port=0,
            admin_port=0,
            seed=1,
            transfer=rules,
            heartbeat_s=600.0,
            timeouts=PATIENT_TIMEOUTS,
        )
    )
    await frontend.start()
    try:
        # That of the prefill engine says that it answers nobody.
        await eventually(lambda: {w.state for w in frontend.ledger.snapshot().workers} == {"prefill", "ready"}, LIMIT_S)
        yield frontend
    finally:
        await frontend.close()


@pytest.fixture
async def pool() -> AsyncIterator[UpstreamPool]:
    made = UpstreamPool()
    yield made
    await made.close()


async def ask(frontend: Frontend, pool: UpstreamPool, path: str, body: dict[str, Any]) -> Response:
    fields = [(b"content-type", b"application/json")]
    text = json.dumps(BODY | body).encode()
    answer = await fetch(pool, Origin.parse(frontend.url), "POST", path, headers=fields, body=text, timeout_s=LIMIT_S)
    assert answer.status == 200, answer.body
    return answer


async def until(holds: Callable[[], bool]) -> None:
    """As `eventually`, for what an engine has to be asked for."""
    async with asyncio.timeout(LIMIT_S):
        while not await asyncio.to_thread(holds):
            await asyncio.sleep(0.05)


def at_rest(frontend: Frontend) -> bool:
    workers = frontend.ledger.snapshot().workers
    return all(
        (worker.running, worker.sequences, worker.prefill_tokens, worker.kv_tokens) == (0, 0, 0, 0)
        for worker in workers
    )


async def test_both_say_how_they_pass_kv_on(front_end: Frontend) -> None:
    shapes = {worker.spec.id: worker.spec.kv for worker in front_end.ledger.snapshot().workers}
    assert set(shapes) == {"p/0", "d/0"}
    for kv in shapes.values():
        assert kv is not None
        assert (kv.handshake, kv.block_size_tokens, kv.tensor_parallel) == (HandShake.VLLM_NIXL, 32, 1)
        assert kv.version is not None
    assert front_end.kv_pairs.refused == {}


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("name", ASKED)
async def test_the_text_is_what_one_engine_says_alone(
    apart: dict[str, Any], alone: dict[str, str], front_end: Frontend, pool: UpstreamPool, name: str, *, streamed: bool
) -> None:
    path, body = ASKED[name]
    # A block or two may be kept since it was asked, when it joined.
    kept = blocks(apart["p"])
    before = metric(apart["d"], "vllm:prompt_tokens_by_source_total", FROM_ELSEWHERE)
    transfers = metric(apart["d"], "vllm:nixl_xfer_time_seconds_count")
    # Nothing with this salt was computed anywhere before.
    extra: dict[str, Any] = {"cache_salt": f"{name}, {streamed}"}
    if streamed:
        extra |= {"stream": True, "stream_options": {"include_usage": True}}

    answer = await ask(front_end, pool, path, body | extra)

    if streamed:
        assert "".join(hear(answer.body).texts.values()) == alone[name]
    else:
        assert said(path, answer.body) == alone[name]
    assert answer.header(b"x-pointsman-worker") == b"d/0"
    assert answer.header(b"x-pointsman-prefill-worker") == b"p/0"
    # An answer ends for its client a little before it is counted.
    await eventually(lambda: at_rest(front_end), LIMIT_S)
    prompt_tokens = front_end.ledger.snapshot().totals.reported_prompt_tokens
    await until(lambda: metric(apart["d"], "vllm:prompt_tokens_by_source_total", FROM_ELSEWHERE) > before)
    moved = metric(apart["d"], "vllm:prompt_tokens_by_source_total", FROM_ELSEWHERE) - before
    assert moved == prompt_tokens > 200, "the other engine computed a part of it"
    await until(lambda: metric(apart["d"], "vllm:nixl_xfer_time_seconds_count") == transfers + 1)
    assert front_end.traffic.transfers["apart", "moved"] == 1
    assert not front_end.traffic.transfer_fallbacks
    # What was read is kept no longer.
    await until(lambda: blocks(apart["p"]) <= kept)


async def test_what_a_client_leaves_behind_between_the_legs_is_freed_before_its_lease_ends(
    apart: dict[str, Any], front_end: Frontend, pool: UpstreamPool
) -> None:
    kept = {name: blocks(server) for name, server in apart.items()}
    path, body = ASKED["completion"]
    os.killpg(apart["d"].process.pid, signal.SIGSTOP)
    try:
        asked = asyncio.create_task(ask(front_end, pool, path, body | {"cache_salt": "left behind"}))
        # It is computed, and waits to be read by an engine that stands still.
        await until(lambda: blocks(apart["p"]) > kept["p"] + 5)
        await until(lambda: metric(apart["p"], "vllm:num_requests_running") == 0)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
    finally:
        os.killpg(apart["d"].process.pid, signal.SIGCONT)

    await until(lambda: all(blocks(server) <= kept[name] for name, server in apart.items()))
    await eventually(lambda: at_rest(front_end), LIMIT_S)


async def test_a_prompt_whose_engine_is_killed_is_computed_where_it_is_answered(
    apart: dict[str, Any], alone: dict[str, str], front_end: Frontend, pool: UpstreamPool
) -> None:
    path, body = ASKED["chat"]
    # The last thing that is asked of it here.
    await asyncio.to_thread(apart["p"].kill)

    answer = await ask(front_end, pool, path, body)

    assert said(path, answer.body) == alone["chat"]
    assert answer.header(b"x-pointsman-worker") == b"d/0"
    assert answer.header(b"x-pointsman-prefill-worker") is None
    await eventually(lambda: at_rest(front_end), LIMIT_S)
    assert sum(front_end.traffic.transfer_fallbacks.values()) == 1
