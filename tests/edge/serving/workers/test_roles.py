"""Roles that are changed while engines run, in virtual time."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from typing import Any

import pytest

from pointsman.core.model.transfer import TransferMode, TransferRules
from pointsman.core.model.worker import Role
from pointsman.edge.cluster.membership import CONFIGURATION
from support.virtual.apart import apart
from support.virtual.client import Answer
from support.virtual.fleet import VirtualFleet
from support.virtual.loop import VirtualLoop, run_virtual
from support.virtual.scene import wrong


async def ordered(fleet: VirtualFleet, engine: str, role: str, number: int = 0) -> Answer:
    url = fleet.frontends[number].admin_url
    return await fleet.client.ask(url, "POST", f"/v1/workers/{engine}/role", {"role": role})


def roles(fleet: VirtualFleet, number: int = 0) -> dict[str, str]:
    workers = fleet.frontends[number].ledger.snapshot().workers
    return {worker.id: worker.spec.role.value for worker in sorted(workers, key=lambda one: one.id)}


async def settle(fleet: VirtualFleet) -> None:
    await fleet.until(lambda: not fleet.at_rest(), 5.0)


def test_an_engine_computes_other_stages_at_every_front_end_and_what_is_there_ends_as_it_began() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with apart(loop, prefills=1, decodes=2, frontends=3) as fleet:
            asked = [fleet.chat(max_tokens=200) for _ in range(6)]
            await fleet.until(lambda: all(answer.tokens > 3 for answer, _, _ in asked))
            answer = await ordered(fleet, "e2", "prefill", 1)
            report = json.loads(answer.body)
            assert (answer.status, report["state"], report["front_ends"]["reached"]) == (200, "role prefill", 3)
            for number in range(3):
                assert roles(fleet, number) == {"e0/0": "prefill", "e1/0": "decode", "e2/0": "prefill"}
            later = [fleet.chat() for _ in range(4)]
            for _, task, _ in (*asked, *later):
                await task
            truth = await fleet.truth([body for _, _, body in (*asked, *later)])
            assert [wrong(a, right) for (a, _, _), right in zip((*asked, *later), truth, strict=True)] == [""] * 10
            assert {a.header(b"x-pointsman-worker") for a, _, _ in later} == {b"e1/0"}
            assert {a.header(b"x-pointsman-prefill-worker") for a, _, _ in later} <= {b"e0/0", b"e2/0"}
            await settle(fleet)
            document = json.loads((await fleet.client.ask(fleet.frontends[0].admin_url, "GET", "/v1/workers")).body)
            assert [engine["role"] for engine in document["engines"]] == ["prefill", "decode", "prefill"]

    run_virtual(main)


def test_a_role_outlives_a_restart_of_its_engine_and_a_reload_that_says_nothing_else() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with apart(loop, prefills=1, decodes=2) as fleet:
            await ordered(fleet, "e2", "both")
            await fleet.engines[2].restart()
            frontend = fleet.frontends[0]
            await fleet.until(lambda: roles(fleet)["e2/0"] == "both" and frontend.ledger.snapshot().workers[2].usable)
            membership = frontend.membership
            sources = [member.source for member in membership.members()]
            membership.offer(CONFIGURATION, [replace(source, weight=2.0) for source in sources])
            await membership.settled()
            assert roles(fleet)["e2/0"] == "both"
            # taken out and named again: another worker under the same name
            membership.offer(CONFIGURATION, sources[:2])
            await membership.settled()
            assert "e2/0" not in roles(fleet)
            membership.offer(CONFIGURATION, sources)
            await fleet.until(lambda: "e2/0" in roles(fleet))
            assert roles(fleet)["e2/0"] == "both"
            # the file says otherwise
            changed = [replace(one, role=Role.PREFILL) if one.name == "e2" else one for one in sources]
            membership.offer(CONFIGURATION, changed)
            await membership.settled()
            assert roles(fleet)["e2/0"] == "prefill"
            membership.offer(CONFIGURATION, sources)
            await membership.settled()
            assert roles(fleet)["e2/0"] == "decode", "the order is over"

    run_virtual(main)


def test_a_front_end_that_comes_later_hears_of_it() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with apart(loop, prefills=1, decodes=2, frontends=2) as fleet:
            await ordered(fleet, "e2", "prefill")
            settings = fleet.frontends[0]._settings
            await fleet.add_frontend(sources=settings.sources, transfer=settings.transfer)
            await fleet.ready()
            await fleet.until(lambda: roles(fleet, 2)["e2/0"] == "prefill", 10.0)

    run_virtual(main)


@pytest.mark.parametrize(
    ("engine", "role", "status", "message"),
    [
        ("e9", "prefill", 404, "no engine 'e9' was reached; there are e0, e1"),
        ("e1", "boss", 400, "expected {"),
        ("e1", "prefill", 409, "e1 is the last that decodes sim: give another engine that role first"),
    ],
)
def test_what_can_not_be_is_refused(engine: str, role: str, status: int, message: str) -> None:
    async def main(loop: VirtualLoop) -> None:
        async with apart(loop, prefills=1, decodes=1) as fleet:
            answer = await ordered(fleet, engine, role)
            assert answer.status == status
            assert message in answer.error["message"]
            assert roles(fleet) == {"e0/0": "prefill", "e1/0": "decode"}

    run_virtual(main)


def test_who_drains_is_not_counted_among_those_that_decode() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with apart(loop, prefills=1, decodes=2) as fleet:
            fleet.frontends[0].drains.begin("e1", "the test says so", 60.0)
            answer = await ordered(fleet, "e2", "prefill")
            assert answer.status == 409
            assert "e2 is the last that decodes sim just now: e1 is draining" in answer.error["message"]
            fleet.frontends[0].drains.resume("e1")
            assert (await ordered(fleet, "e2", "prefill")).status == 200

    run_virtual(main)


def test_an_engine_that_passes_no_kv_on_can_not_compute_prompts_for_others() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with apart(loop, prefills=1, decodes=2) as fleet:
            frontend = fleet.frontends[0]
            source = frontend.membership.source("e2")
            assert source is not None
            others = [member.source for member in frontend.membership.members() if member.source.name != "e2"]
            without: Any = replace(source, kv=None)  # type: ignore[call-arg]
            frontend.membership.offer(CONFIGURATION, [*others, without])
            await frontend.membership.settled()
            await fleet.until(lambda: roles(fleet).get("e2/0") == "decode")
            answer = await ordered(fleet, "e2", "prefill")
            assert answer.status == 409
            assert "e2 passes no KV on" in answer.error["message"]

    run_virtual(main)


def test_a_model_that_nobody_decodes_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main(loop: VirtualLoop) -> None:
        async with apart(loop, prefills=1, decodes=1) as fleet:
            membership = fleet.frontends[0].membership
            sources = [member.source for member in membership.members()]
            caplog.clear()
            membership.offer(CONFIGURATION, [replace(source, role=Role.PREFILL) for source in sources])
            await membership.settled()
            await asyncio.sleep(10.0)
            said = [record.getMessage() for record in caplog.records if "nobody answers" in record.getMessage()]
            assert said == ["sim: all its engines compute prompts for others only, so nobody answers (node_role)"]
            answer, task, _ = fleet.chat()
            await task
            assert answer.status == 503

    with caplog.at_level(logging.WARNING):
        run_virtual(main)


def test_engines_for_prompts_that_get_none_as_no_kv_is_moved_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main(loop: VirtualLoop) -> None:
        caplog.set_level(logging.WARNING)
        async with apart(loop, rules=TransferRules(TransferMode.OFF)):
            await asyncio.sleep(5.0)
            said = [record.getMessage() for record in caplog.records if "gets none" in record.getMessage()]
            (line,) = said
            assert (
                line == "e0: computes prompts for others only (role prefill), and gets none: routing.kv_transfer is off"
            )

    run_virtual(main)


def test_nothing_is_said_of_engines_for_prompts_that_get_some(caplog: pytest.LogCaptureFixture) -> None:
    async def main(loop: VirtualLoop) -> None:
        caplog.set_level(logging.WARNING)
        async with apart(loop):
            await asyncio.sleep(5.0)
            assert not [record for record in caplog.records if "gets none" in record.getMessage()]

    run_virtual(main)


def test_engines_that_left_are_forgotten_and_their_orders_are_not() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with apart(loop, decodes=3) as fleet:
            frontend = fleet.frontends[0]
            sources = [member.source for member in frontend.membership.members()]
            await ordered(fleet, "e3", "prefill")
            for names in (sources[:2], sources[:3], sources):
                frontend.membership.offer(CONFIGURATION, names)
                await frontend.membership.settled()
                await asyncio.sleep(3.0)
                assert set(frontend.engines._roles._told) == {source.name for source in names}
            assert roles(fleet)["e3/0"] == "prefill"

    run_virtual(main)
