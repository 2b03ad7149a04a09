"""What an engine answers under load is what it answers alone, bit by bit, also where it has to compute things again."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack, suppress
from typing import Any

import aiohttp

from support.embedded_servers import start_embedded
from support.engine_client import Client


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

        async def leave(fields: dict[str, Any]) -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await busy.complete(**fields)

        alone = [await answers(quiet, fields) for fields in requests]
        leavers = [asyncio.create_task(leave(fields)) for fields in requests[::3]]
        together = await asyncio.gather(*(answers(busy, fields) for fields in requests))
        await asyncio.gather(*leavers)
        assert together == alone
        model = server.state.runner.model
        assert model.preemptions > 0
        assert model.counters.prompt_tokens_cached > 0
