"""What a front end tells of requests whose KV was moved, in virtual time."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

from pointsman.core.ledger.events import RoleChanged, WorkerChanged
from pointsman.core.model.transfer import TransferMode, TransferRules
from pointsman.core.model.worker import Role
from support.virtual.apart import KV, apart
from support.virtual.client import Answer
from support.virtual.fleet import VirtualFleet
from support.virtual.loop import VirtualLoop, run_virtual


async def ask(fleet: VirtualFleet, path: str) -> Any:
    answer = await fleet.client.ask(fleet.frontends[0].admin_url, "GET", path)
    assert answer.status == 200, answer.body
    return json.loads(answer.body)


async def row_of(fleet: VirtualFleet, answer: Answer) -> Any:
    name = answer.header(b"x-pointsman-request-id")
    assert name is not None
    return await ask(fleet, f"/v1/decisions/{name.decode()}?state=1")


def test_its_decision_names_both_workers_and_what_came_of_it() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with apart(loop) as fleet:
            answer, task, _ = fleet.chat()
            await task
            row = await row_of(fleet, answer)
            assert row["prefill_worker"] == "e0/0"
            assert row["worker"].encode() == answer.header(b"x-pointsman-worker")
            legs = row["legs"]
            assert legs["prefill"] == "e0/0"
            assert legs["prefill_ms"] > 0
            assert legs["moved_tokens"] > 300
            assert "fallback" not in legs
            assert len(row["state"]) > 100
            found = await ask(fleet, "/v1/decisions?prefill_worker=e0/0")
            assert [one["id"] for one in found["decisions"]] == [row["id"]]
            sums = await ask(fleet, "/v1/transfers?since=1h")
            assert sums["decisions"] == 1
            total = sums["total"]
            assert total.get("requests", 0) + total.get("unknown", 0) == 1

    run_virtual(main)


def test_a_decision_tells_how_long_it_took_until_it_was_clear_that_no_kv_comes() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with apart(loop) as fleet:
            answer, task, _ = fleet.chat()
            await asyncio.sleep(0.05)
            fleet.engines[0].kill()
            await task
            legs = (await row_of(fleet, answer))["legs"]
            assert legs["fallback"]
            assert legs["lost_ms"] > 20
            total = (await ask(fleet, "/v1/transfers"))["total"]
            assert (total["fallbacks"], total.get("bytes", 0)) == (1, 0)

    run_virtual(main)


def test_status_and_metrics_show_roles_transfers_and_prompts() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with apart(loop) as fleet:
            _, task, _ = fleet.chat()
            await task
            status = await ask(fleet, "/v1/status")
            workers = {one["id"]: one for one in status["workers"]}
            assert [workers[name]["role"] for name in ("e0/0", "e1/0", "e2/0")] == ["prefill", "decode", "decode"]
            assert [workers[name]["state"] for name in ("e0/0", "e1/0")] == ["prefill", "ready"]
            assert workers["e0/0"]["passing"]["prefills_total"] == 1
            assert {one["passing"]["group"] for one in workers.values()} == {1}
            told = status["transfers"]
            assert (told["prefills_total"], told["transfers_total"], told.get("under_way", 0)) == (1, 1, 0)
            assert told["moved_bytes_total"] > 0
            page = (await fleet.client.ask(fleet.frontends[0].admin_url, "GET", "/metrics")).body.decode()
            assert 'pointsman_worker_ready{state="prefill",worker="e0/0"} 1.0' in page
            assert 'pointsman_worker_prefills_total{worker="e0/0"} 1.0' in page
            assert 'pointsman_worker_transfers_out{worker="e0/0"} 0.0' in page
            assert "pointsman_transfer_saved_ms_total" in page

    run_virtual(main)


def test_status_says_with_whom_an_ordered_role_can_not_be_kept() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with apart(loop) as fleet:
            ledger = fleet.frontends[0].ledger
            other = next(one.spec for one in ledger.snapshot().workers if one.id == "e2/0")
            ledger.apply(WorkerChanged(replace(other, kv=replace(KV, block_size_tokens=64)), 0.0))
            ledger.apply(RoleChanged(other.id, 0.0, Role.PREFILL))
            workers = {one["id"]: one for one in (await ask(fleet, "/v1/status"))["workers"]}
            assert workers["e2/0"]["passing"]["refused"] == {"e1/0": "block sizes differ: 64 and 16"}
            assert "refused" not in workers["e0/0"]["passing"]

    run_virtual(main)


def test_what_fell_back_is_told_with_the_reason() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with apart(loop) as fleet:
            answer, task, _ = fleet.chat()
            await fleet.until(lambda: fleet.engines[0].running > 0)
            fleet.engines[0].kill()
            await task
            row = await row_of(fleet, answer)
            assert row["prefill_worker"] == "e0/0"
            assert row["legs"]["fallback"]
            sums = await ask(fleet, "/v1/transfers")
            assert sum(sums["fallbacks"].values()) == 1

    run_virtual(main)


def test_what_nobody_wanted_to_move_is_told_as_ever() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with apart(loop, rules=TransferRules(TransferMode.OFF)) as fleet:
            answer, task, _ = fleet.chat()
            await task
            row = await row_of(fleet, answer)
            assert "legs" not in row
            assert "prefill_worker" not in row
            assert "plans" not in row
            assert (await ask(fleet, "/v1/transfers"))["sentence"].startswith("no KV was moved")

    run_virtual(main)


def test_the_debug_header_tells_the_plan() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with apart(loop, debug_headers=True) as fleet:
            url, body = fleet.frontends[0].url, fleet.body(0, stream=False)
            answer = await fleet.client.ask(url, "POST", "/v1/chat/completions", body, [(b"x-pointsman-explain", b"1")])
            told = json.loads(answer.header(b"x-pointsman-explain") or b"{}")
            assert (told["prefill_worker"], told["plans"][0]["prefill"]) == ("e0/0", "e0/0")
            assert told["worker"] in ("e1/0", "e2/0")

    run_virtual(main)
