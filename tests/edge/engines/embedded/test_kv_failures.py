"""KV that does not come, or must not be used: over HTTP, in one process."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import Any

import aiohttp
import pytest

from support.kv_movers import COMPUTE_FOR_ANOTHER, Mover, movers, tiny

PROMPT = [(number * 41 + 3) % 250 + 5 for number in range(120)]


async def answer_alone(mover: Mover) -> list[int]:
    (choice,) = (await mover.complete(PROMPT, 8))["choices"]
    return list(choice["token_ids"])


def ids(answer: dict[str, Any]) -> list[int]:
    return list(answer["choices"][0]["token_ids"])


def report(answer: dict[str, Any]) -> dict[str, Any]:
    return dict(answer["kv_transfer_params"]["pointsman_transfer"])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"fingerprint": "0" * 32}, "fingerprint: the KV is of another model, or of other weights"),
        ({"tp_size": 2}, "tp_size: its blocks are parts of 2 GPUs, those here are whole"),
        (
            {"block_size": 32, "remote_block_ids": [[1, 2, 3, 4]]},
            "block_size: its blocks have 32 tokens, those here 16",
        ),
    ],
)
async def test_kv_that_does_not_fit_is_computed_here_or_refused(
    change: dict[str, object], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with movers() as (p, d):
        params = await p.prefill(PROMPT)
        answer = await d.complete(PROMPT, 8, kv_transfer_params={**params, **change})
        assert ids(answer) == await answer_alone(p)
        assert report(answer)["failure"] == "mismatch"
        assert [r.getMessage() for r in caplog.records if reason in r.getMessage()]
        metrics = await d.metrics()
        assert metrics['pointsman_kv_fetch_failures_total{reason="mismatch"}'] == 1
        assert metrics["vllm:nixl_num_failed_transfers_total"] == 1
        await p.at_rest()
    async with movers(transfer_load_failure="fail") as (p, d):
        params = await p.prefill(PROMPT)
        refused = await d.complete(PROMPT, 8, 400, kv_transfer_params={**params, **change})
        assert reason in refused["error"]["message"]
        assert refused["error"]["param"] == "kv_transfer_params"
        await p.at_rest()
        await d.at_rest()


async def test_another_model_has_another_fingerprint() -> None:
    async with movers(1) as (one,), movers(1, "seed:1") as (other,):
        params = await one.prefill(PROMPT)
        answer = await other.complete(PROMPT, 8, kv_transfer_params=params)
        assert report(answer)["failure"] == "mismatch"
        assert tiny().decoder.fingerprint != tiny("seed:1").decoder.fingerprint
        await one.at_rest()


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"do_remote_decode": True, "do_remote_prefill": True}, "can't both be true"),
        ({"do_remote_prefill": True}, "kv_transfer_params.remote_engine_id is missing: pass the object"),
        ({"do_remote_prefill": 1}, "Expected `bool`, got `int`"),
        ({"remote_port": 0}, "remote_port: 0 is no port"),
        ({"remote_port": "x"}, "Expected `int | null`, got `str`"),
        ({"remote_num_tokens": 1}, "1 tokens in blocks of 16 don't fill 8 remote_block_ids"),
        ({"remote_block_ids": [[1], [2]]}, "2 groups of blocks, and this engine has one"),
        ({"remote_token": None}, "kv_transfer_params.remote_token is missing"),
    ],
)
async def test_params_that_make_no_sense_are_refused_by_field(params: dict[str, object], message: str) -> None:
    async with movers() as (p, d):
        whole = {} if "do_remote_prefill" in params else await p.prefill(PROMPT)
        refused = await d.complete(PROMPT, 8, 400, kv_transfer_params={**whole, **params})
        assert message in refused["error"]["message"]
        assert not len(d.handover.fetches)


@pytest.mark.parametrize(
    ("body", "message", "field"),
    [
        ({"token_ids": [-1, 5]}, "Token id -1 is out of vocabulary", "token_ids"),
        ({"token_ids": [5, 99_999]}, "Token id 99999 is out of vocabulary", "token_ids"),
        ({"token_ids": []}, "The prompt cannot be empty", "token_ids"),
        ({"prompt": "x", "token_ids": [5]}, "Give exactly one of", "token_ids"),
        ({"prompt": "x", "max_tokens": -1}, "max_tokens must not be negative", "max_tokens"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages", "messages[0].content"),
    ],
)
async def test_what_can_not_be_held_is_refused_by_field(body: dict[str, object], message: str, field: str) -> None:
    async with movers(1) as (p,):
        refused = await p.post("/kv/hold", body, 400)
        assert message in refused["error"]["message"]
        assert refused["error"]["param"] == field


async def test_null_means_the_model_that_is_served() -> None:
    chat = {"model": None, "messages": [{"role": "user", "content": "as long as two blocks of tokens are, or more"}]}
    async with movers(1) as (p,):
        answer = await p.post("/v1/chat/completions", {**chat, "max_tokens": 1})
        held = await p.post("/kv/hold", chat)
        assert held["remote_num_tokens"] == answer["usage"]["prompt_tokens"] // 16 * 16 > 0


async def test_a_client_that_gives_each_request_the_same_id_disturbs_no_prompt_that_is_held() -> None:
    async with movers(1, transfer_lease_s=600.0) as (p,):
        names = set()
        for number in range(20):
            body = {"prompt": [number + 5], "max_tokens": 1, "kv_transfer_params": COMPUTE_FOR_ANOTHER}
            async with p.http.post(
                p.server.url + "/v1/completions", json=body, headers={"x-request-id": "mine"}
            ) as answer:
                assert answer.status == 200, await answer.text()
                names.add((await answer.json())["kv_transfer_params"]["remote_request_id"])
            gc.collect()
        assert len(names) == len(p.handover.leases) == 20
        for name in names:
            assert await p.post("/kv/release", {"remote_request_id": name}) == {"released": True}
        await p.at_rest()


async def test_what_goes_wrong_with_a_hold_is_told_and_the_engine_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async with movers(1) as (p,):

        def broken(*given: object) -> None:
            raise RuntimeError("no hold today")

        monkeypatch.setattr(p.handover, "hold", broken)
        running = asyncio.create_task(p.complete(PROMPT, 60))
        while not p.engine.model.running:
            await asyncio.sleep(0)
        for _ in range(3):
            with pytest.raises(RuntimeError, match="no hold today"):
                await p.handover.held(PROMPT, None, None, None)
        assert len(ids(await running)) == 60


async def test_an_engine_that_stops_lets_sources_go() -> None:
    async with movers(num_blocks=20, max_model_len=320) as (p, d):
        params = await p.prefill(PROMPT)
        # No room: it waits, and nothing is read.
        large = asyncio.create_task(d.complete(PROMPT[:100] * 2, 110))
        while not d.engine.model.running:
            await asyncio.sleep(0)
        waits = asyncio.create_task(d.complete(PROMPT, 8, kv_transfer_params=params))
        while not len(d.handover.fetches):
            await asyncio.sleep(0)
        assert len(p.handover.leases) == 1
        await d.server.close()
        await asyncio.gather(large, waits, return_exceptions=True)
        await p.at_rest()
        assert p.handover.leases.expired == 0


async def test_an_engine_that_drains_has_work_as_long_as_others_are_to_read_from_it() -> None:
    async with movers() as (p, d):
        params = await p.prefill(PROMPT)
        p.server.unready()
        p.server.refuse()
        assert p.server.in_flight == 1
        assert report(await d.complete(PROMPT, 8, kv_transfer_params=params))["transferred_tokens"] == 119
        await p.at_rest()
        assert p.server.in_flight == 0


async def test_without_either_flag_params_change_nothing() -> None:
    async with movers(1) as (p,):
        answer = await p.complete(PROMPT, 8, kv_transfer_params={"do_remote_decode": False})
        assert answer.get("kv_transfer_params") is None
        assert p.engine.model.held == 0


async def test_an_engine_whose_kv_stays_answers_as_if_it_had_not_been_asked() -> None:
    async with movers(1) as (p,):
        server = p.server
        server.state.runner.transfers = None
        answer = await p.complete(PROMPT, 1, kv_transfer_params=COMPUTE_FOR_ANOTHER)
        assert answer.get("kv_transfer_params") is None


@pytest.mark.parametrize("load_failure", ["recompute", "fail"])
async def test_a_source_that_is_gone_costs_time_or_the_request(
    load_failure: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with movers(3, transfer_load_failure=load_failure) as (p, d, other):
        params = await p.prefill(PROMPT)
        await p.server.close()
        status = 200 if load_failure == "recompute" else 500
        answer = await d.complete(PROMPT, 8, status, kv_transfer_params=params)
        if status == 200:
            assert ids(answer) == await answer_alone(other)
            assert report(answer)["failure"] == "unreachable"
            (line,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
            assert "0 of 119 prompt tokens came from embedded-" in line
            assert "120 are computed here" in line
        else:
            assert "the KV of the prompt did not come: no connection" in answer["error"]["message"]
        assert (await d.metrics())['pointsman_kv_fetch_failures_total{reason="unreachable"}'] == 1
        await d.at_rest()


async def test_a_source_that_dies_in_the_middle_leaves_what_came() -> None:
    async with movers(transfer_transport="tcp") as (p, d):
        params = await p.prefill(PROMPT)
        alone = await answer_alone(p)
        block = d.engine.kv.block
        counted = 0

        def put(number: int) -> Any:
            nonlocal counted
            counted += 1
            if counted == 4:
                task = asyncio.get_running_loop().create_task(p.handover.close())
                d.server.closing = task  # type: ignore[attr-defined]
                raise OSError("the connection is reset")
            return block(number)

        d.engine.kv.block = put
        answer = await d.complete(PROMPT, 8, kv_transfer_params=params)
        assert ids(answer) == alone
        assert report(answer)["failure"] in ("broken", "local")
        assert report(answer)["transferred_tokens"] == 48
        await d.at_rest()


async def test_a_lease_that_ended_means_that_all_is_computed() -> None:
    async with movers(transfer_lease_s=0.05) as (p, d):
        params = await p.prefill(PROMPT)
        await p.at_rest()
        assert p.handover.leases.expired == 1
        answer = await d.complete(PROMPT, 8, kv_transfer_params=params)
        assert report(answer)["failure"] == "broken"
        assert ids(answer) == await answer_alone(p)
        assert (await p.metrics())["vllm:nixl_num_kv_expired_reqs_total"] == 1
        await d.at_rest()


async def test_a_prompt_that_differs_uses_what_is_the_same() -> None:
    async with movers() as (p, d):
        params = await p.prefill(PROMPT)
        other = [*PROMPT[:40], 7, *PROMPT[41:]]
        answer = await d.complete(other, 8, kv_transfer_params=params)
        assert report(answer)["failure"] == "corrupt"
        assert report(answer)["transferred_tokens"] == 32
        assert ids(answer) == ids(await p.complete(other, 8))
        await p.at_rest()


async def test_another_cache_salt_is_another_prompt() -> None:
    async with movers() as (p, d):
        params = await p.prefill(PROMPT, cache_salt="one")
        answer = await d.complete(PROMPT, 8, kv_transfer_params=params, cache_salt="other")
        assert report(answer)["transferred_tokens"] == 0
        assert report(answer)["failure"] == "corrupt"
        params = await p.prefill(PROMPT, cache_salt="one")
        answer = await d.complete(PROMPT, 8, kv_transfer_params=params, cache_salt="one")
        assert report(answer)["transferred_tokens"] == 119
        assert await p.post("/kv/hold", {"token_ids": PROMPT}) == {"remote_num_tokens": 0}
        held = await p.post("/kv/hold", {"token_ids": PROMPT, "cache_salt": "one"})
        assert held["remote_num_tokens"] == 112


async def test_a_longer_prompt_goes_on_behind_what_was_computed_elsewhere() -> None:
    async with movers() as (p, d):
        params = await p.prefill(PROMPT[:100])
        answer = await d.complete(PROMPT, 8, kv_transfer_params=params)
        assert report(answer)["transferred_tokens"] == 100
        assert ids(answer) == await answer_alone(p)
        params = await p.prefill(PROMPT)
        shorter = await d.complete(PROMPT[:90], 8, kv_transfer_params=params)
        assert ids(shorter) == ids(await p.complete(PROMPT[:90], 8))
        await p.at_rest()


async def test_a_client_that_leaves_while_it_waits_frees_both_sides() -> None:
    async with movers(max_num_seqs=1) as (p, d):
        params = await p.prefill(PROMPT)
        busy = asyncio.create_task(d.complete([1, 2, 3], 400))
        leaves = asyncio.create_task(d.complete(PROMPT, 8, kv_transfer_params=params))
        while not len(d.handover.fetches):
            await asyncio.sleep(0.002)
        leaves.cancel()
        await p.at_rest()
        await asyncio.wait([leaves])
        busy.cancel()
        await asyncio.wait([busy])
        await d.at_rest()


async def test_a_client_that_leaves_during_prefill_leaves_nothing_held() -> None:
    async with movers(max_batched_tokens=8, max_num_seqs=8) as (p, _):
        leaves = asyncio.create_task(p.prefill([*PROMPT, *PROMPT]))
        while not p.engine.model.running:
            await asyncio.sleep(0.001)
        leaves.cancel()
        await asyncio.wait([leaves])
        await p.at_rest()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "exactly one of token_ids, prompt and messages"),
        ({"token_ids": [1], "prompt": "x"}, "exactly one of"),
        ({"token_ids": []}, "The prompt cannot be empty"),
        ({"token_ids": [-1]}, "out of vocabulary"),
        ({"token_ids": [10**6]}, "out of vocabulary"),
        ({"token_ids": [1], "max_tokens": -1}, "max_tokens must not be negative"),
        ({"token_ids": "x"}, "Expected `array | null`"),
    ],
)
async def test_a_hold_that_makes_no_sense_is_refused(body: dict[str, object], message: str) -> None:
    async with movers(1) as (only,):
        assert message in (await only.post("/kv/hold", body, 400))["error"]["message"]


async def test_not_all_blocks_can_be_held() -> None:
    async with movers(1, num_blocks=32) as (only,):
        prompts = [[seed, *PROMPT[:64]] for seed in range(1, 8)]
        for prompt in prompts:
            await only.complete(prompt, 1)
        held = [await only.post("/kv/hold", {"token_ids": prompt}) for prompt in prompts]
        assert sum(each["remote_num_tokens"] for each in held) <= 16 * 16
        assert held[-1] == {"remote_num_tokens": 0}
        await only.complete(PROMPT, 4)


async def test_a_draining_engine_holds_nothing_more() -> None:
    async with movers(1) as (only,):
        only.server.refuse()
        assert "drains" in (await only.post("/kv/hold", {"token_ids": PROMPT}, 503))["error"]["message"]


async def test_a_failed_step_frees_what_is_held_for_others() -> None:
    async with movers(1) as (only,):
        await only.prefill(PROMPT)
        compute = only.engine.compute

        def breaks(work: object) -> None:
            only.engine.compute = compute
            raise ValueError("no")

        only.engine.compute = breaks
        with pytest.raises((AssertionError, aiohttp.ClientError)):
            await only.complete([9, 8, 7], 4)
        await only.at_rest()
        assert only.engine.model.cached_hashes() == []
        assert ids(await only.complete(PROMPT, 2))
