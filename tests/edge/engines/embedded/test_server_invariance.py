"""What an engine answers under load is what it answers alone, bit by bit, also where it has to compute things again."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from typing import Any

import aiohttp

from support.embedded_servers import start_embedded
from support.engine_client import Client
from support.waiting import eventually


def asked(chance: random.Random, shared: list[int]) -> dict[str, Any]:
    prompt = [
        *shared[: chance.choice([0, 16, 48])],
        *(chance.randrange(3, 460) for _ in range(chance.randrange(1, 50))),
    ]
    fields: dict[str, Any] = {
        "prompt": prompt,
        "max_tokens": chance.choice([1, 8, 40]),
        "temperature": chance.choice([0, 0.8, 1.5]),
        "seed": chance.randrange(2**40),
        "presence_penalty": chance.choice([0, 1.0]),
        "repetition_penalty": chance.choice([1.0, 1.2]),
        "ignore_eos": True,
        "logprobs": 2,
        "return_token_ids": True,
        "echo": chance.random() < 0.3,
    }
    if fields["temperature"] and chance.random() < 0.3:
        fields["n"] = 2
    return fields


async def answers(client: Client, fields: dict[str, Any]) -> list[tuple[list[int], list[float]]]:
    choices = (await client.complete(**fields)).json["choices"]
    return [(choice["token_ids"], choice["logprobs"]["token_logprobs"]) for choice in choices]


async def test_answers_under_load_are_those_of_a_quiet_engine(session: aiohttp.ClientSession) -> None:
    chance = random.Random(5)
    shared = [chance.randrange(3, 460) for _ in range(48)]
    requests = [asked(chance, shared) for _ in range(24)]
    async with AsyncExitStack() as stack:
        quiet = Client(session, await start_embedded(stack, prefix_caching=False, max_num_seqs=1))
        # Too few blocks for all that run, and steps too small for a prompt.
        server = await start_embedded(
            stack, num_blocks=48, max_model_len=192, max_num_seqs=12, max_batched_tokens=20, prefix_caching=True
        )
        busy = Client(session, server)
        runner = server.state.runner
        model, wake = runner.model, runner.wake
        alone = [await answers(quiet, fields) for fields in requests]
        # It begins when all are there: on a fast machine the first would have gone before the last came.
        runner.wake = lambda: None  # type: ignore[method-assign]
        leavers = [asyncio.create_task(busy.complete(**fields)) for fields in requests[::3]]
        stay = [asyncio.create_task(answers(busy, fields)) for fields in requests]
        sequences = sum(fields.get("n", 1) for fields in [*requests, *requests[::3]])
        await eventually(lambda: model.waiting == sequences)
        runner.wake = wake  # type: ignore[method-assign]
        wake()
        await eventually(lambda: model.preemptions > 0)
        for leaver in leavers:
            leaver.cancel()
        assert await asyncio.gather(*stay) == alone
        await asyncio.gather(*leavers, return_exceptions=True)
        assert model.counters.prompt_tokens_cached > 0
