"""Two real llama.cpp: a prompt is computed at one, saved, restored at the other one, which knows all of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pointsman.core.model.kv_shape import HandShake
from pointsman.core.model.transfer import TransferMode, TransferRules
from pointsman.core.model.worker import Role
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.engines.local.process import EngineProcess, llama_command
from pointsman.edge.engines.local.settings import LocalEngineSettings
from pointsman.edge.serving.frontend import Frontend
from pointsman.edge.serving.settings import FrontendSettings
from pointsman.edge.wire.http1_client import Origin, UpstreamPool
from support.fetch import Response, fetch
from support.told_streams import hear
from support.waiting import eventually

pytestmark = pytest.mark.local

LIMIT_S = 120.0
FACTS = "Paris is the capital of France; Rome is the capital of Italy; Madrid is the capital of Spain. " * 6
CAPITALS = {"Italy": "Rome", "France": "Paris", "Spain": "Madrid"}


def body(country: str, **more: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": f"{FACTS} What is the capital of {country}?"}]
    return {"model": "m", "messages": said, "temperature": 0, "max_tokens": 16, **more}


@pytest.fixture
async def urls(model_path: Path, tmp_path: Path) -> AsyncIterator[list[str]]:
    """Of two engines that see one directory."""
    settings = LocalEngineSettings(
        model_path=str(model_path), model_name="m", context_tokens=4096, slots=2, slot_save_path=str(tmp_path)
    )
    started: list[EngineProcess] = []
    try:
        for name in ("p", "d"):
            log = tmp_path.parent / f"{tmp_path.name}-{name}.log"
            started.append(await EngineProcess.start(llama_command(settings), log))
        yield [await engine.ready(LIMIT_S) for engine in started]
    finally:
        for engine in started:
            await engine.stop(5.0)


async def ask(pool: UpstreamPool, url: str, body: dict[str, Any]) -> Response:
    fields = [(b"content-type", b"application/json")]
    text, path = json.dumps(body).encode(), "/v1/chat/completions"
    answer = await fetch(pool, Origin.parse(url), "POST", path, headers=fields, body=text, timeout_s=LIMIT_S)
    assert answer.status == 200, answer.body
    return answer


async def test_a_prompt_computed_elsewhere_is_gone_on_from(urls: list[str], tmp_path: Path) -> None:
    sources = tuple(
        WorkerSource(name, url, role=role, cache_transport="shared-storage")
        for name, url, role in zip("pd", urls, (Role.PREFILL, Role.DECODE), strict=True)
    )
    rules = TransferRules(TransferMode.ALWAYS)
    frontend = Frontend(FrontendSettings(sources=sources, port=0, admin_port=0, seed=1, transfer=rules))
    pool = UpstreamPool()
    await frontend.start()
    try:
        await eventually(lambda: {w.state for w in frontend.ledger.snapshot().workers} == {"prefill", "ready"}, LIMIT_S)
        kinds = {w.spec.kv.handshake for w in frontend.ledger.snapshot().workers if w.spec.kv}
        assert kinds == {HandShake.LLAMACPP_SLOTS}

        asked = 0
        for country, capital in CAPITALS.items():
            answer = await ask(pool, frontend.url, body(country))
            streamed = await ask(pool, frontend.url, body(country, stream=True))
            alone = await ask(pool, urls[0], body(country, cache_prompt=False))
            asked += 2

            told, whole = json.loads(answer.body), json.loads(alone.body)
            texts = [one["choices"][0]["message"]["content"] for one in (told, whole)]
            texts.append(hear(streamed.body).texts["content", 0])
            assert all(capital in text for text in texts), texts
            for got in (answer, streamed):
                assert got.header(b"x-pointsman-prefill-worker") == b"p/0"
            # Whoever restored it computed the last position only.
            usage = told["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1
            # The last position rounds otherwise alone than among others: now and then that makes another word.
            if len(set(texts)) == 1:
                break
        else:
            raise AssertionError("none of the texts is the one of an engine that computed all of its prompt")
        assert len(await asyncio.to_thread(lambda: list(tmp_path.glob("pointsman-*.bin")))) == asked
        assert not frontend.traffic.transfer_fallbacks
    finally:
        await frontend.close()
        await pool.close()
