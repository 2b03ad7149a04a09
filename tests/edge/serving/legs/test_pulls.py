"""Beginnings of prompts that are fetched from the engine that holds them, in virtual time."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from pointsman.core.model.decision import Decision
from pointsman.core.model.plan import Aggregate, Pull
from pointsman.core.model.request import Request
from pointsman.core.model.transfer import TransferMode, TransferRules
from pointsman.core.model.view import Column, FleetView
from pointsman.core.model.worker import WorkerId
from pointsman.core.policies.policy import Timing
from support.virtual.apart import KV, apart
from support.virtual.fleet import VirtualFleet
from support.virtual.loop import VirtualLoop, run_virtual
from support.virtual.scene import wrong

AUTO = TransferRules()


class Puller:
    """Everything is answered by e1, which fetches what e0 holds."""

    name = "puller"
    makes_plans = True

    def decide(self, request: Request, view: FleetView, timing: Timing, now_ms: float, rng: random.Random) -> Decision:
        rows = view.workers.index(WorkerId("e0/0")), view.workers.index(WorkerId("e1/0"))
        held = int(view.table[Column.CACHED_TOKENS, rows[0]])
        may = view.transfer.mode is not TransferMode.OFF and held > 0
        row = rows[1] if view.eligible[rows[1]] else rows[0]
        plan = Aggregate(view.workers[row], Pull(WorkerId("e0/0"), held) if may and row == rows[1] else None)
        return Decision(request.id, self.name, now_ms, plan, view, "rank", view.load)


def scene(main: Any, rules: TransferRules = AUTO) -> None:
    async def run(loop: VirtualLoop) -> None:
        async with apart(loop, prefills=0, decodes=2, rules=rules, kv=replace(KV, parts=True)) as fleet:
            fleet.frontends[0].policy.policy = Puller()
            body = fleet.body(1, max_tokens=20)
            answer = await fleet.client.ask(fleet.engines[0].url, "POST", "/v1/chat/completions", body)
            await fleet.until(lambda: bool(held(fleet, "e0/0") > 20))
            (right,) = await fleet.truth([body])
            assert wrong(answer, right) == ""
            await main(fleet, body, right)
            await fleet.until(lambda: not fleet.at_rest(), 5.0)

    run_virtual(run)


def held(fleet: VirtualFleet, name: str) -> int:
    """Blocks that the front end knows of."""
    snapshot = fleet.frontends[0].ledger.snapshot()
    return next(worker.kv.blocks.get("gpu", 0) for worker in snapshot.workers if worker.id == name)


def test_what_is_held_is_fetched_and_the_rest_is_computed() -> None:
    async def main(fleet: VirtualFleet, body: dict[str, Any], right: Any) -> None:
        answer = await fleet.client.ask(fleet.url(), "POST", "/v1/chat/completions", body)
        assert wrong(answer, right) == ""
        assert answer.header(b"x-pointsman-worker") == b"e1/0"
        assert answer.header(b"x-pointsman-prefill-worker") is None
        assert dict(fleet.frontends[0].traffic.transfers) == {("pull", "moved"): 1}
        assert fleet.engines[0].kv.given == 1
        fetched = fleet.engines[1].kv.fetched_tokens
        assert 300 < fetched < 360
        assert fetched % 16 == 0
        totals = {worker.id: worker.totals for worker in fleet.frontends[0].ledger.snapshot().workers}
        assert totals["e0/0"].transfers_out == totals["e1/0"].transfers_in == 1
        assert fleet.frontends[0].traffic.transfer_bytes == fetched * 64

    scene(main)


@pytest.mark.parametrize("fallback", [True, False])
def test_what_is_not_held_any_more_is_computed(fallback: bool) -> None:
    async def main(fleet: VirtualFleet, body: dict[str, Any], right: Any) -> None:
        fleet.engines[0].kv.engine.hold = lambda *_: None  # type: ignore[method-assign, assignment]
        answer = await fleet.client.ask(fleet.url(), "POST", "/v1/chat/completions", body)
        assert dict(fleet.frontends[0].traffic.transfer_fallbacks) == {"nothing_held": 1}
        if fallback:
            assert wrong(answer, right) == ""
        else:
            assert (answer.status, answer.error["code"]) == (503, "transfer_failed")

    scene(main, TransferRules(fallback_to_local=fallback))


def test_the_engine_that_holds_it_is_gone() -> None:
    async def main(fleet: VirtualFleet, body: dict[str, Any], right: Any) -> None:
        answer, task = fleet.client.start(fleet.url(), "/v1/chat/completions", body)
        await fleet.until(lambda: bool(fleet.engines[1].kv._fetches), every_s=0.001)
        fleet.engines[0].kill()
        await task
        assert wrong(answer, right) == ""
        assert dict(fleet.frontends[0].traffic.transfer_fallbacks) == {"decode_refused": 1}

    scene(main)


def test_a_client_that_leaves_frees_what_is_held() -> None:
    async def main(fleet: VirtualFleet, body: dict[str, Any], right: Any) -> None:
        _, task = fleet.client.start(fleet.url(), "/v1/chat/completions", body)
        await fleet.until(lambda: bool(fleet.engines[1].kv._fetches), every_s=0.001)
        assert fleet.engines[0].held == 1
        task.cancel()
        await fleet.until(lambda: not fleet.at_rest(), 5.0)
        assert fleet.engines[0].kv.expired == 0

    scene(main)
