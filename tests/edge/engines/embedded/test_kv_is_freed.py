"""Whatever happens to a transfer and whoever leaves: nothing stays held, and answers are what they would be anyway."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.core.engine_model.engine import RequestRefusedError
from pointsman.core.engine_model.sequence import Sequence
from pointsman.edge.engines.embedded.seeded_weights import tiny_config
from pointsman.edge.engines.embedded.transfer_settings import TransferSettings
from pointsman.edge.engines.openai_server.errors import ApiError
from pointsman.edge.engines.openai_server.sampling import SampledRequest
from support.embedded_models import decoder, greedy
from support.scripted_kv import ScriptedRunner, World, scripted_engines
from support.virtual_time import run_virtually

MODEL = decoder(tiny_config(300))
LEASE_S = 2.0
COMPUTE_FOR_ANOTHER = {"do_remote_decode": True}


def prompt_of(number: int) -> list[int]:
    return [(place * 7 + number * 31) % 290 + 3 for place in range(9 + number * 14)]


@cache
def expected(number: int, answer: int) -> tuple[int, ...]:
    return tuple(greedy(MODEL, prompt_of(number), answer))


class Fleet:
    """Two engines and clients."""

    def __init__(self, world: World, load_failure: Any = "recompute", **sizes: int) -> None:
        self.world = world
        transfers = TransferSettings(port=1, lease_s=LEASE_S, load_failure=load_failure)
        self.engines = scripted_engines(world, MODEL, 2, transfers, **sizes)
        self.count = 0
        self.dead: set[int] = set()
        self.answered = 0

    def request(self, number: int, answer: int, params: dict[str, object] | None, n: int = 1) -> SampledRequest:
        self.count += 1
        return SampledRequest(f"r{self.count}", prompt_of(number), answer, n, kv_transfer_params=params)

    async def prefill(self, at: int, number: int) -> dict[str, object] | None:
        runner = self.engines[at]
        request = self.request(number, 1, COMPUTE_FOR_ANOTHER)
        await runner.answer(*runner.submit(request))
        return runner.told[request.id]

    async def hold(self, at: int, number: int) -> dict[str, object] | None:
        handover = self.engines[at].handover
        lease = await handover.held(prompt_of(number), None, None, None)
        return None if lease is None else handover.params_of(lease)

    async def decode(self, at: int, number: int, answer: int, params: dict[str, object] | None, n: int = 1) -> None:
        runner = self.engines[at]
        sequences = runner.submit(self.request(number, answer, params, n))
        try:
            for sequence in sequences:
                assert tuple(await runner.answer(sequence)) == expected(number, answer)
                self.answered += 1
        finally:
            self.leave(runner, sequences)

    def leave(self, runner: ScriptedRunner, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            runner.abort(sequence)

    def die(self, at: int) -> None:
        """Nobody hears of it any more."""
        self.world.handovers.pop(self.engines[at].handover.name, None)
        self.dead.add(at)

    def check(self) -> None:
        for at, runner in enumerate(self.engines):
            if at in self.dead:
                continue
            model, handover = runner.engine.model, runner.handover
            assert (model.kv_use, model.held, model.running, model.waiting) == (0, 0, 0, 0)
            assert (len(handover.leases), len(handover.fetches), handover._told) == (0, 0, {})
            assert not handover.fetches._renewals
            pages = runner.engine._scheduler.pages
            assert not any(pages._plain.values())
            assert model.reset_prefix_cache()
            assert pages.free == model.config.num_blocks


CALLS = st.tuples(
    st.sampled_from(["apart", "pull", "alone", "prefill only", "hold only"]),
    st.integers(0, 1),  # where the first leg goes
    st.integers(0, 5),  # which prompt
    st.integers(1, 12),  # tokens to generate
    st.integers(1, 2),  # answers
    st.floats(0, 0.4),  # when
    st.one_of(st.none(), st.floats(0, 0.4)),  # how long the client stays
)


@given(
    calls=st.lists(CALLS, min_size=1, max_size=8),
    block_s=st.sampled_from([0.0, 0.003, 0.05, 0.7]),
    breaks=st.lists(st.one_of(st.none(), st.integers(0, 4)), max_size=6),
    dies=st.one_of(st.none(), st.tuples(st.integers(0, 1), st.floats(0, 0.5))),
    fails=st.booleans(),
    blocks=st.sampled_from([16, 24, 60]),
)
@settings(max_examples=40)
def test_nothing_stays_held(
    calls: list[Any], block_s: float, breaks: list[int | None], dies: Any, fails: bool, blocks: int
) -> None:
    async def run() -> None:
        world = World(block_s, breaks)
        fleet = Fleet(world, "fail" if fails else "recompute", num_blocks=blocks)

        async def client(what: str, first: int, number: int, answer: int, n: int, at_s: float, stays_s: Any) -> None:
            await asyncio.sleep(at_s)
            try:
                async with asyncio.timeout(stays_s):
                    if what == "alone":
                        await fleet.decode(first, number, answer, None, n)
                    elif what in ("apart", "prefill only"):
                        params = await fleet.prefill(first, number)
                        if what == "apart":
                            await fleet.decode(1 - first, number, answer, params, n)
                    else:
                        params = await fleet.hold(first, number)
                        if what == "pull":
                            await fleet.decode(1 - first, number, answer, params, n)
            except (TimeoutError, asyncio.CancelledError):
                assert stays_s is not None
            except ApiError:
                assert fails
            except RequestRefusedError:
                pass

        clients = [asyncio.create_task(client(*call)) for call in calls]
        if dies is not None:
            await asyncio.sleep(dies[1])
            fleet.die(dies[0])
        await asyncio.wait(clients)
        for task in clients:
            task.result()
        # Whatever nobody asked for again is free when its lease ends; the last may have been extended just now.
        await asyncio.sleep(3 * LEASE_S)
        fleet.check()

    run_virtually(run())


def test_a_request_that_waits_for_room_keeps_the_lease_of_its_kv() -> None:
    async def run() -> None:
        fleet = Fleet(World(0.0, []), max_num_seqs=1)
        params = await fleet.prefill(0, 5)
        # 247 steps of 10 ms take longer than the lease.
        long = fleet.engines[1].submit(fleet.request(0, 247, None))
        waits = asyncio.create_task(fleet.decode(1, 5, 4, params))
        await asyncio.sleep(LEASE_S + 0.3)
        leases = fleet.engines[0].handover.leases
        assert (len(leases), leases.expired) == (1, 0)
        await fleet.engines[1].answer(*long)
        await waits
        assert fleet.engines[1].engine.model.counters.prompt_tokens_transferred == len(prompt_of(5)) - 1
        fleet.check()

    run_virtually(run())


def test_the_source_is_free_as_soon_as_its_blocks_were_read() -> None:
    async def run() -> None:
        fleet = Fleet(World(0.001, []))
        params = await fleet.prefill(0, 5)
        await fleet.decode(1, 5, 60, params)
        assert not len(fleet.engines[0].handover.leases)
        fleet.check()

    run_virtually(run())


def test_a_client_that_leaves_during_the_transfer_frees_both_sides_at_once() -> None:
    async def run() -> None:
        fleet = Fleet(World(0.1, []))
        params = await fleet.prefill(0, 5)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.25):
                await fleet.decode(1, 5, 60, params)
        await asyncio.sleep(0.11)
        fleet.check()

    run_virtually(run())


@pytest.mark.parametrize("leaves", [True, False])
def test_a_lease_that_nobody_asks_for_ends(leaves: bool) -> None:
    async def run() -> None:
        fleet = Fleet(World(0.0, []))
        if leaves:
            runner = fleet.engines[0]
            sequences = runner.submit(fleet.request(5, 1, COMPUTE_FOR_ANOTHER))
            await asyncio.sleep(0.005)
            fleet.leave(runner, sequences)
            await asyncio.sleep(0.05)
            assert not len(runner.handover.leases)
        else:
            await fleet.prefill(0, 5)
            await asyncio.sleep(LEASE_S - 0.1)
            assert len(fleet.engines[0].handover.leases) == 1
            await asyncio.sleep(0.2)
            assert fleet.engines[0].handover.leases.expired == 1
        fleet.check()

    run_virtually(run())


def test_what_came_before_a_transfer_broke_is_used() -> None:
    async def run() -> None:
        fleet = Fleet(World(0.0, [3]))
        params = await fleet.prefill(0, 5)
        await fleet.decode(1, 5, 6, params)
        counters = fleet.engines[1].engine.model.counters
        assert (counters.prompt_tokens_transferred, counters.prompt_tokens_computed) == (48, len(prompt_of(5)) - 48)
        fleet.check()

    run_virtually(run())


def test_a_failed_step_lets_go_of_everything() -> None:
    async def run() -> None:
        fleet = Fleet(World(0.1, []))
        held = await fleet.prefill(1, 2)
        params = await fleet.prefill(0, 5)
        runner = fleet.engines[1]
        runner.submit(fleet.request(5, 60, params))
        await asyncio.sleep(0.15)
        assert held is not None
        assert (len(runner.handover.leases), len(runner.handover.fetches)) == (1, 1)
        for sequence in runner.engine.model.requests():
            runner.engine.model.abort_sequence(sequence)
        runner.handover.lost()
        assert runner.engine.model.reset_prefix_cache()
        await asyncio.sleep(0.2)
        fleet.check()

    run_virtually(run())


def test_two_engines_that_are_full_for_each_other_do_not_wait_for_ever() -> None:
    async def run() -> None:
        fleet = Fleet(World(0.001, []), num_blocks=16)
        # What each holds for the other one leaves no room for what it is to fetch itself.
        pairs = [(0, 3), (0, 4), (0, 5), (1, 6), (1, 7)]
        params = await asyncio.gather(*(fleet.prefill(at, number) for at, number in pairs))
        assert [runner.engine.model.held for runner in fleet.engines] == [3, 2]
        assert min(runner.engine.model.kv_use for runner in fleet.engines) > 0.7
        answers = [
            asyncio.create_task(fleet.decode(1 - at, number, 12, told))
            for (at, number), told in zip(pairs, params, strict=True)
        ]
        await asyncio.gather(*answers)
        await asyncio.sleep(3 * LEASE_S)
        fleet.check()

    run_virtually(run())


def test_a_transfer_may_take_longer_than_a_request_may_wait_for_room() -> None:
    async def run() -> None:
        world = World(LEASE_S * 1.5, [])
        world.word_s = 0.0
        fleet = Fleet(world)
        params = await fleet.prefill(0, 5)
        await fleet.decode(1, 5, 4, params)
        assert fleet.engines[1].engine.model.counters.prompt_tokens_transferred == len(prompt_of(5)) - 1
        await asyncio.sleep(LEASE_S * 2)
        fleet.check()

    run_virtually(run())
