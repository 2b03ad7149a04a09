"""Prefill on one engine, decode on another one; parts of prompts that are fetched. All over HTTP, in one process."""

from __future__ import annotations

import asyncio
from array import array
from typing import Any

import aiohttp
import numpy as np
import pytest

from pointsman.core.engine_model.block_hash import prompt_hashes
from pointsman.edge.engines.embedded.server import EmbeddedServer
from pointsman.edge.engines.embedded.settings import EmbeddedSettings
from support.kv_movers import COMPUTE_FOR_ANOTHER, Mover, movers, tiny

PROMPT = [(number * 37 + 11) % 250 + 5 for number in range(150)]
"""Nine full blocks of 16, and six tokens."""


def told(answer: dict[str, Any]) -> tuple[list[int], list[float], str]:
    (choice,) = answer["choices"]
    return choice["token_ids"], choice["logprobs"]["token_logprobs"], choice["text"]


def moved(answer: dict[str, Any]) -> dict[str, Any]:
    return dict(answer["kv_transfer_params"]["pointsman_transfer"])


def block_of(mover: Mover, place: int, prompt: list[int]) -> np.ndarray[Any, Any]:
    contents = mover.engine.block_of(prompt_hashes(array("I", prompt), 16, 0)[place])
    assert contents is not None
    return np.asarray(contents)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("length", [150, 144, 17, 2])
async def test_answers_are_the_same_bit_by_bit(transport: str, length: int) -> None:
    prompt = PROMPT[:length]
    async with movers(transfer_transport=transport) as (p, d):
        params = await p.prefill(prompt)
        assert params["remote_num_tokens"] == length
        assert p.engine.model.held == 1
        answer = await d.complete(prompt, kv_transfer_params=params)
        await p.at_rest()
        alone = await p.complete(prompt)
        assert told(answer) == told(alone)
        for place in range(length // 16):
            assert (block_of(p, place, prompt) == block_of(d, place, prompt)).all()
        report = moved(answer)
        assert (report["transport"], report["transferred_tokens"]) == (transport, length - 1)
        assert report["transferred_bytes"] == -(-(length - 1) // 16) * p.engine.kv.block_bytes
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == length - 1
        by_source = await d.metrics()
        assert by_source['vllm:prompt_tokens_by_source_total{source="external_kv_transfer"}'] == length - 1
        assert by_source['vllm:prompt_tokens_by_source_total{source="local_compute"}'] == 1
        await d.at_rest()


@pytest.mark.parametrize("budget", [16, 64, 256])
async def test_a_part_that_is_held_elsewhere_is_fetched_and_the_rest_computed(budget: int) -> None:
    async with movers(max_batched_tokens=budget) as (holder, puller):
        await holder.complete(PROMPT[:70], 1)
        params = await holder.post("/kv/hold", {"token_ids": PROMPT})
        assert (params["remote_num_tokens"], len(params["remote_block_ids"][0])) == (64, 4)
        answer = await puller.complete(PROMPT, kv_transfer_params=params)
        await holder.at_rest()
        assert moved(answer)["transferred_tokens"] == 64
        assert told(answer) == told(await holder.complete(PROMPT))
        counters = puller.engine.model.counters
        assert (counters.prompt_tokens_transferred, counters.prompt_tokens_computed) == (64, 86)


async def test_blocks_that_are_cached_here_are_not_fetched() -> None:
    async with movers() as (p, d):
        await d.complete(PROMPT[:40], 1)
        params = await p.prefill(PROMPT)
        answer = await d.complete(PROMPT, kv_transfer_params=params)
        await p.at_rest()
        assert told(answer) == told(await p.complete(PROMPT))
        assert moved(answer)["transferred_tokens"] == 149 - 32
        # All of it is here now: nothing moves, and the source is told so.
        params = await p.prefill([*PROMPT[:144], 9])
        again = await d.complete([*PROMPT[:144], 9], kv_transfer_params=params)
        assert moved(again) == {
            "transferred_tokens": 0, "transferred_bytes": 0, "transfer_ms": 0.0, "transport": None
        }  # fmt: skip
        await p.at_rest()
        await d.at_rest()


async def test_chats_move_too_and_streams_tell_of_it_in_their_last_event() -> None:
    messages = [{"role": "user", "content": "What do the people of the city say about the old man and his work? " * 4}]
    ask = {"messages": messages, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    async with movers() as (p, d):
        first = await p.post(
            "/v1/chat/completions", {**ask, "max_tokens": 1, "kv_transfer_params": COMPUTE_FOR_ANOTHER}
        )
        params = first["kv_transfer_params"]
        second = await d.post("/v1/chat/completions", {**ask, "kv_transfer_params": params})
        alone = await p.post("/v1/chat/completions", ask)
        assert second["choices"] == alone["choices"]
        held = await p.post("/kv/hold", {"messages": messages, "max_tokens": 40})
        assert held["remote_num_tokens"] == 32
        assert await p.post("/kv/release", {"remote_request_id": held["remote_request_id"]}) == {"released": True}
        assert await p.post("/kv/release", {"remote_request_id": held["remote_request_id"]}) == {"released": False}
        params = await p.prefill(PROMPT)
        events = await d.stream(PROMPT, kv_transfer_params=params)
        assert [event.get("kv_transfer_params") is not None for event in events].count(True) == 1
        assert moved(events[-1])["transferred_tokens"] == 149
        await p.at_rest()
        await d.at_rest()


async def test_several_answers_fetch_their_prompt_once() -> None:
    async with movers() as (p, d):
        params = await p.prefill(PROMPT)
        drawn = {"n": 3, "temperature": 0.8, "seed": 5}
        answer = await d.complete(PROMPT, kv_transfer_params=params, **drawn)
        alone = await p.complete(PROMPT, **drawn)
        assert [c["token_ids"] for c in answer["choices"]] == [c["token_ids"] for c in alone["choices"]]
        assert moved(answer)["transferred_tokens"] == 149
        assert (await d.metrics())["vllm:nixl_xfer_time_seconds_count"] == 1
        await p.at_rest()
        await d.at_rest()


async def test_without_a_prefix_cache_kv_moves_as_well() -> None:
    async with movers(prefix_caching=False) as (p, d):
        params = await p.prefill(PROMPT)
        answer = await d.complete(PROMPT, kv_transfer_params=params)
        assert moved(answer)["transferred_tokens"] == 149
        await p.at_rest()
        assert told(answer) == told(await p.complete(PROMPT))
        assert await p.post("/kv/hold", {"token_ids": PROMPT}) == {"remote_num_tokens": 0}
        assert not (await p.get("/kv/info"))["holds_parts"]


async def test_imported_blocks_are_announced() -> None:
    async with movers() as (p, d):
        published: list[Any] = []
        d.server.state.runner._publish = published.extend
        params = await p.prefill(PROMPT)
        await d.complete(PROMPT, 1, kv_transfer_params=params)
        tokens = [token for event in published for token in event.token_ids]
        assert tokens == PROMPT[:144]


async def test_info_says_what_decides_whether_kv_fits() -> None:
    async with movers() as (p, d):
        one, other = await p.get("/kv/info"), await d.get("/kv/info")
        assert one["kind"] == "pointsman-embedded"
        assert one["fingerprint"] == other["fingerprint"]
        assert one["engine_id"] != other["engine_id"]
        assert one["host_id"] == other["host_id"]
        assert (one["block_size"], one["dtype"], one["holds_parts"]) == (16, "float32", True)
        assert one["bytes_per_token"] * 16 == p.engine.kv.block_bytes
        assert one["transports"][-1] == "tcp"
        assert one["lease_s"] == 30.0


@pytest.mark.parametrize("codec", ["f16", "int8", "zstd"])
async def test_codecs_are_used_over_tcp(codec: str) -> None:
    async with movers(transfer_transport="tcp", transfer_codec=codec) as (p, d):
        params = await p.prefill(PROMPT)
        answer = await d.complete(PROMPT, kv_transfer_params=params)
        report = moved(answer)
        assert (report["codec"], report["transport"]) == (codec, "tcp")
        assert report["wire_bytes"] < report["transferred_bytes"]
        if codec == "zstd":
            await p.at_rest()
            assert told(answer) == told(await p.complete(PROMPT))


async def test_what_was_computed_here_itself_is_used_where_it_is() -> None:
    async with movers(1) as (only,):
        params = await only.prefill(PROMPT)
        answer = await only.complete(PROMPT, kv_transfer_params=params)
        assert "kv_transfer_params" not in answer or answer["kv_transfer_params"] is None
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 144
        await only.at_rest()


async def test_many_at_once_between_three_engines_leave_nothing_held() -> None:
    async with movers(3, num_blocks=40) as engines:
        prompts = [[(number * 7 + seed * 13) % 250 + 5 for number in range(20 + seed * 11)] for seed in range(12)]

        async def both(number: int) -> dict[str, Any]:
            p, d = engines[number % 3], engines[(number + 1) % 3]
            return await d.complete(prompts[number], 6, kv_transfer_params=await p.prefill(prompts[number]))

        answers = await asyncio.gather(*map(both, range(12)))
        for mover in engines:
            await mover.at_rest()
        for number, answer in enumerate(answers):
            assert told(answer) == told(await engines[number % 3].complete(prompts[number], 6))


async def test_kv_that_stays_is_told_by_no_route() -> None:
    server = EmbeddedServer(EmbeddedSettings(num_blocks=64, max_model_len=512, transfer=None))
    await server.start()
    try:
        await server.load(tiny())
        async with aiohttp.ClientSession() as http, http.get(f"{server.url}/kv/info") as answer:
            assert answer.status == 404
            mover = Mover(server, http)
            told = await mover.complete(PROMPT, 1, kv_transfer_params=COMPUTE_FOR_ANOTHER)
            assert told.get("kv_transfer_params") is None
            assert not any(name.startswith("pointsman_kv") for name in await mover.metrics())
    finally:
        await server.close()
