"""Keys of prompts of any length are the same, wherever they are computed."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator

import pytest

from pointsman.core.ledger.events import KvFeedChanged, KvFeedState, WorkerJoined
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.token_keys import KeySpec, pack_tokens, salt_extra, token_block_keys
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.engines.facts import EngineFacts
from pointsman.edge.prompts.encoder import PromptEncoder
from pointsman.edge.prompts.engine_prompts import EnginePrompts
from pointsman.edge.serving.bodies import BodyFacts, read_completion
from pointsman.edge.serving.token_keys import NOT_TOKENIZED, TokenKeys

SPEC = KeySpec(1)


@pytest.fixture
def encoder() -> Iterator[PromptEncoder]:
    async def never(prompt: object) -> None:
        raise AssertionError("prompts of token ids need no tokenizing")

    encoder = PromptEncoder()
    encoder.register("m", EnginePrompts(never))
    yield encoder
    encoder.close()


@pytest.fixture
def keys(encoder: PromptEncoder) -> TokenKeys:
    ledger = Ledger()
    facts = EngineFacts(kind="sglang", version="1", models=("m",), block_size_tokens=1)
    ledger.apply(WorkerJoined(WorkerSource(name="a", url="http://127.0.0.1:1").spec(facts, 0), 0.0))
    ledger.apply(KvFeedChanged("a/0", 0.0, KvFeedState.COMPLETE, "so"))
    return TokenKeys(ledger, encoder, lambda model: False, inline_blocks=100)


def body(count: int, **fields: object) -> BodyFacts:
    return read_completion(json.dumps({"model": "m", "prompt": list(range(count)), **fields}).encode())


@pytest.mark.parametrize("count", [100, 101, 5000])
async def test_keys_are_those_of_the_definition(keys, count):
    tokenized = await keys.of(body(count, cache_salt="s"))
    wanted = token_block_keys(pack_tokens(range(count)), SPEC, None, {0: salt_extra("s")})
    assert tokenized.blocks == {SPEC: wanted}
    assert tokenized.prompt_tokens == count


async def test_only_very_long_prompts_leave_the_event_loop(keys, monkeypatch):
    threads: list[bool] = []
    whole = keys._long

    def noted(*given):
        threads.append(threading.current_thread() is threading.main_thread())
        return whole(*given)

    monkeypatch.setattr(keys, "_long", noted)
    await keys.of(body(100))
    assert threads == []
    await keys.of(body(101))
    assert threads == [False]


async def test_threads_share_what_they_keyed(keys):
    many = await asyncio.gather(*(keys.of(body(5000)) for _ in range(8)))
    assert len({tokenized.blocks[SPEC].keys for tokenized in many}) == 1
    assert keys._long_chains.misses == 5000 // 32
    assert len(keys._chains) == 0


async def test_a_long_prompt_that_no_thread_takes_goes_by_text(keys, encoder):
    encoder.close()
    assert await keys.of(body(101)) is NOT_TOKENIZED
    assert encoder.counts.failed["overloaded"] == 1
