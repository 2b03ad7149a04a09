"""Requests whose prompt is computed at one engine and answered by another one, in virtual time."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from pointsman.core.model.kv_shape import HandShake, KvShape
from pointsman.core.model.transfer import TransferMode, TransferRules
from pointsman.edge.serving.tenants.usage import delivered_tokens
from pointsman.edge.serving.timeouts import Timeouts
from support.virtual.apart import KV, apart
from support.virtual.client import Answer
from support.virtual.fleet import VirtualFleet
from support.virtual.kv_runner import LEASE_S
from support.virtual.loop import VirtualLoop, run_virtual
from support.virtual.scene import wrong

FREED_WITHIN_S = 5.0
NO_FALLBACK = TransferRules(TransferMode.ALWAYS, fallback_to_local=False)
PATIENCE = Timeouts(connect_s=5.0, first_byte_s=20.0, idle_s=300.0, total_s=None)


async def judged(fleet: VirtualFleet, asked: list[tuple[Answer, asyncio.Task[Answer], dict[str, Any]]]) -> None:
    """All got their whole, right answer, and nothing is counted any more."""
    for _, task, _ in asked:
        await task
    truth = await fleet.truth([body for _, _, body in asked])
    assert [wrong(answer, right) for (answer, _, _), right in zip(asked, truth, strict=True)] == [""] * len(asked)
    await at_rest(fleet)


async def at_rest(fleet: VirtualFleet) -> None:
    """Within the time that is allowed nothing is counted or held anywhere."""
    try:
        await fleet.until(lambda: not fleet.at_rest(), FREED_WITHIN_S)
    except TimeoutError:
        raise AssertionError(fleet.at_rest()) from None


def fallbacks(fleet: VirtualFleet) -> dict[str, int]:
    return dict(fleet.frontends[0].traffic.transfer_fallbacks)


def transfers(fleet: VirtualFleet) -> dict[tuple[str, str], int]:
    return dict(fleet.frontends[0].traffic.transfers)


async def prefilling(fleet: VirtualFleet) -> None:
    """Until the engine for prompts has one."""
    await fleet.until(lambda: fleet.engines[0].running > 0)
    await asyncio.sleep(0.3)


async def moving(fleet: VirtualFleet) -> None:
    """Until KV is on its way."""
    await fleet.until(lambda: any(one.kv._fetches for one in fleet.engines[1:] if one.server), every_s=0.001)
    await asyncio.sleep(0.3)
    assert fleet.engines[0].server is None or fleet.engines[0].held


# ---- when all is well


@pytest.mark.parametrize("handshake", [HandShake.BLOCKS, HandShake.VLLM_NIXL], ids=str)
def test_streams_and_plain_answers_are_those_of_one_engine(handshake: HandShake) -> None:
    async def main(loop: VirtualLoop) -> None:
        async with apart(loop, kv=KvShape(handshake, 16)) as fleet:
            asked = [fleet.chat(), fleet.plain(), fleet.chat(stream_options=None), fleet.chat()]
            await judged(fleet, asked)
            for answer, _, _ in asked:
                assert answer.header(b"x-pointsman-prefill-worker") == b"e0/0"
                assert answer.header(b"x-pointsman-worker") in (b"e1/0", b"e2/0")
            assert transfers(fleet) == {("apart", "moved"): 4}
            assert fallbacks(fleet) == {}
            assert fleet.engines[0].kv.given == 4
            assert sum(engine.kv.fetched_tokens for engine in fleet.engines[1:]) > 4 * 300

    run_virtual(main)


@pytest.mark.parametrize("handshake", [HandShake.SHARED_STORAGE, HandShake.VLLM_NIXL], ids=str)
def test_an_engine_that_found_nothing_of_what_was_computed_for_it_is_told_of_once(
    handshake: HandShake, caplog: pytest.LogCaptureFixture
) -> None:
    """Here no storage is shared, whatever the operator says; blocks that are read are counted as cached."""

    async def main(loop: VirtualLoop) -> None:
        async with apart(loop, kv=KvShape(handshake, 16)) as fleet:
            texts = [" ".join(f"word {n}" for n in range(first, first + 200)) for first in (0, 500)]
            asked = [fleet.chat(messages=[{"role": "user", "content": text}]) for text in texts]
            await judged(fleet, [*asked, fleet.plain()])
            found = handshake is HandShake.VLLM_NIXL
            assert fallbacks(fleet) == ({} if found else {"not_found": 2})
            assert transfers(fleet)["apart", "moved"] == (3 if found else 1)
            said = [record for record in caplog.records if "found nothing of what was computed" in record.message]
            assert len(said) == (0 if found else len({answer.header(b"x-pointsman-worker") for answer, _, _ in asked}))

    run_virtual(main)


def test_what_the_engine_tells_of_a_transfer_is_counted_and_teaches_the_ledger() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with apart(loop) as fleet:
            await judged(fleet, [fleet.chat()])
            frontend = fleet.frontends[0]
            assert frontend.traffic.transfer_bytes == 360 * 64
            assert 0.5 < frontend.traffic.transfer_s.sum < 2.0
            totals = {worker.id: worker.totals for worker in frontend.ledger.snapshot().workers}
            assert (totals["e0/0"].prefills, totals["e0/0"].transfers_out) == (1, 1)
            assert sum(one.transfers_in for one in totals.values()) == 1
            page = (await fleet.client.ask(frontend.admin_url, "GET", "/metrics")).body.decode()
            assert 'pointsman_transfers_total{kind="apart",outcome="moved"} 1.0' in page
            assert "pointsman_transfer_bytes_total 23040.0" in page

    run_virtual(main)


def test_requests_that_can_not_be_split_are_answered_by_one_engine() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with apart(loop) as fleet:
            answer, task, _ = fleet.plain(n=2)
            await task
            assert len(json.loads(answer.body)["choices"]) == 2
            assert answer.header(b"x-pointsman-prefill-worker") is None
            assert fallbacks(fleet) == {"refused": 1}
            assert transfers(fleet) == {}
            await at_rest(fleet)

    run_virtual(main)


@pytest.mark.parametrize("field", ["kv_transfer_params", "bootstrap_room", "disaggregated_params"])
def test_only_the_front_end_says_where_kv_is_read_from(field: str) -> None:
    async def main(loop: VirtualLoop) -> None:
        async with apart(loop) as fleet:
            answer, task, _ = fleet.chat(**{field: {"remote_host": "10.0.0.1"}})
            await task
            assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "field_not_allowed", field)
            answer, task, _ = fleet.chat(**{field: None})
            await task
            assert answer.whole

    run_virtual(main)


def test_a_header_names_the_engine_for_the_prompt() -> None:
    async def main(loop: VirtualLoop) -> None:
        auto = TransferRules(TransferMode.OFF)
        async with apart(loop, prefills=2, rules=auto, debug_headers=True) as fleet:
            pins = [(b"x-pointsman-prefill-worker", b"e1/0"), (b"x-pointsman-worker", b"e3/0")]
            for headers in ([pins[0]], pins):
                answer = await fleet.client.ask(
                    fleet.url(), "POST", "/v1/chat/completions", fleet.body(len(headers)), headers
                )
                assert answer.header(b"x-pointsman-prefill-worker") == b"e1/0"
            assert answer.header(b"x-pointsman-worker") == b"e3/0"
            answer = await fleet.client.ask(
                fleet.url(), "POST", "/v1/chat/completions", fleet.body(9), [(b"x-pointsman-prefill-worker", b"x/0")]
            )
            assert (answer.status, answer.error["param"]) == (400, "x-pointsman-prefill-worker")

    run_virtual(main)


# ---- the engine for prompts fails


@pytest.mark.parametrize(
    ("status", "label"),
    [(429, "overloaded"), (503, "overloaded"), (500, "server_error"), (408, "unusable_answer"), (401, "server_error")],
)
def test_a_prompt_that_is_not_computed_there_is_computed_where_it_is_answered(status: int, label: str) -> None:
    async def main(loop: VirtualLoop) -> None:
        async with apart(loop) as fleet:
            fleet.engines[0].set_faults(error_status=status)
            asked = [fleet.chat(), fleet.plain()]
            await judged(fleet, asked)
            assert fallbacks(fleet) == {label: 2}
            assert asked[0][0].header(b"x-pointsman-prefill-worker") is None

    run_virtual(main)


def test_what_the_client_did_wrong_is_told_at_once() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with apart(loop) as fleet:
            fleet.engines[0].set_faults(error_status=422)
            before = [engine.kv.engine.counters.steps for engine in fleet.engines[1:]]
            answer, task, _ = fleet.chat()
            await task
            assert answer.status == 422
            assert answer.header(b"x-pointsman-worker") == b"e0/0"
            assert [engine.kv.engine.counters.steps for engine in fleet.engines[1:]] == before
            assert transfers(fleet) == {("apart", "answered"): 1}
            await at_rest(fleet)

    run_virtual(main)


def test_an_engine_that_keeps_nothing_is_found_out() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with apart(loop) as fleet:
            runner = fleet.engines[0].kv
            runner.transfer_answer = lambda sequences: None  # type: ignore[method-assign]
            await judged_but_for_held(fleet)
            assert fallbacks(fleet) == {"unusable_answer": 1}

    async def judged_but_for_held(fleet: VirtualFleet) -> None:
        answer, task, body = fleet.chat()
        await task
        (right,) = await fleet.truth([body])
        assert wrong(answer, right) == ""

    run_virtual(main)


@pytest.mark.parametrize("when", [prefilling, moving])
def test_the_engine_for_prompts_dies(when: Any) -> None:
    async def main(loop: VirtualLoop) -> None:
        async with apart(loop) as fleet:
            asked = [fleet.chat(), fleet.plain()]
            await when(fleet)
            fleet.engines[0].kill()
            await judged(fleet, asked)
            assert sum(fallbacks(fleet).values()) == 2
            assert set(fallbacks(fleet)) == ({"lost"} if when is prefilling else {"decode_refused"})

    run_virtual(main)


@pytest.mark.parametrize("when", [prefilling, moving])
def test_the_engine_for_prompts_is_stopped(when: Any) -> None:
    """Its connections stay open: health has to find it out."""

    async def main(loop: VirtualLoop) -> None:
        async with apart(loop) as fleet:
            asked = [fleet.chat(), fleet.plain()]
            await when(fleet)
            stopped_s = loop.time()
            fleet.engines[0].stop()
            for _, task, _ in asked:
                await task
            assert loop.time() - stopped_s < 25.0
            assert fallbacks(fleet) == {"worker_given_up": 2}
            fleet.engines[0].go_on()
            await fleet.until(lambda: not fleet.engines[0].held, LEASE_S)  # it could not be told while it stood still
            await judged(fleet, asked)

    run_virtual(main)


def test_a_prefill_that_takes_too_long_is_computed_elsewhere() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with apart(loop, timeouts=PATIENCE) as fleet:
            fleet.engines[0].set_faults(hang=True)
            asked = [fleet.chat()]
            await judged(fleet, asked)
            assert fallbacks(fleet) == {"late": 1}

    run_virtual(main)


def test_where_nothing_else_is_allowed_the_request_fails_clearly() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with apart(loop, rules=NO_FALLBACK) as fleet:
            fleet.engines[0].set_faults(error_status=500)
            answer, task, _ = fleet.chat()
            await task
            assert (answer.status, answer.error["code"]) == (503, "transfer_failed")
            assert answer.header(b"retry-after") == b"1"
            assert "prefill at e0/0 failed" in answer.error["message"]
            assert transfers(fleet) == {("apart", "failed"): 1}
            await at_rest(fleet)

    run_virtual(main)


# ---- the engine that answers fails


def test_the_engine_that_answers_dies_while_kv_comes() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with apart(loop) as fleet:
            asked = [fleet.chat() for _ in range(4)]
            await moving(fleet)
            fleet.engines[1].kill()
            await judged(fleet, asked)
            assert fallbacks(fleet) == {}
            assert {answer.header(b"x-pointsman-worker") for answer, _, _ in asked} == {b"e2/0"}
            assert fleet.engines[0].kv.expired == 0

    run_virtual(main)


def test_the_engine_that_answers_is_gone_when_the_prompt_is_computed() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with apart(loop) as fleet:
            asked = [fleet.chat() for _ in range(2)]
            await prefilling(fleet)
            fleet.engines[1].kill()
            await judged(fleet, asked)
            assert fleet.frontends[0].traffic.retries["unreachable"] == 1

    run_virtual(main)


def test_an_engine_that_does_not_take_kv_computes_it_itself_and_is_not_blamed() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with apart(loop, decodes=1) as fleet:
            await asyncio.sleep(5.0)  # what else is asked of engines when they join is over
            fleet.engines[1].set_faults(error_status=500, requests=1)
            asked = [fleet.chat()]
            await judged(fleet, asked)
            assert fallbacks(fleet) == {"decode_refused": 1}
            faults = {worker.id: worker.faults.counts for worker in fleet.frontends[0].ledger.snapshot().workers}
            assert faults["e1/0"] == {}

    run_virtual(main)


def test_kv_that_never_comes_is_computed() -> None:
    """As where the port by which engines read KV is closed to the other one."""

    async def main(loop: VirtualLoop) -> None:
        async with apart(loop) as fleet:
            for engine in fleet.engines[1:]:
                engine.kv._fetch = lambda *_: asyncio.Event().wait()  # type: ignore[assignment, method-assign]
            asked = [fleet.chat(), fleet.plain()]
            await judged(fleet, asked)
            assert fallbacks(fleet) == {"transfer_stuck": 2}
            assert loop.time() < 1_100.0

    run_virtual(main)


def test_plain_answers_that_take_long_are_not_stuck() -> None:
    """Nothing comes of them until they are whole, which is no reason to compute them again."""

    async def main(loop: VirtualLoop) -> None:
        async with apart(loop, decodes=1) as fleet:
            asked = [fleet.plain(max_tokens=2_000)]
            await asyncio.sleep(65.0)
            asked.append(fleet.plain(max_tokens=100))
            await judged(fleet, asked)
            assert loop.time() > 1_100.0
            assert fallbacks(fleet) == {}
            assert transfers(fleet) == {("apart", "moved"): 2}

    run_virtual(main)


def test_a_plain_answer_whose_kv_has_come_outlives_the_engine_for_prompts() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with apart(loop, decodes=1) as fleet:
            asked = [fleet.plain(max_tokens=600)]
            await moving(fleet)
            await fleet.until(lambda: not fleet.engines[0].held)
            await asyncio.sleep(3.0)  # until metrics say so
            fleet.engines[0].kill()
            await judged(fleet, asked)
            assert fallbacks(fleet) == {}

    run_virtual(main)


def test_kv_that_keeps_being_of_no_use_is_left_alone_and_tried_again() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with apart(loop, decodes=1) as fleet:
            runner = fleet.engines[0].kv
            usual = runner.transfer_answer
            runner.transfer_answer = lambda sequences: None  # type: ignore[method-assign]
            for _ in range(4):
                _, task, _ = fleet.chat()
                await task
                await asyncio.sleep(6.0)
            assert fallbacks(fleet) == {"unusable_answer": 3}, "the fourth was not split"
            assert dict(fleet.frontends[0].traffic.kv_left_alone) == {"gives": 1, "takes": 1}
            runner.transfer_answer = usual  # type: ignore[method-assign]
            for held in list(runner.engine._held):
                runner.engine.release_held(held)
            await asyncio.sleep(30.0)
            await judged(fleet, [fleet.chat()])
            assert transfers(fleet) == {("apart", "fallback"): 3, ("apart", "moved"): 1}

    run_virtual(main)


# ---- clients that leave, drains, ends


@pytest.mark.parametrize("when", [prefilling, moving])
def test_both_engines_are_free_when_the_client_leaves(when: Any) -> None:
    async def main(loop: VirtualLoop) -> None:
        async with apart(loop) as fleet:
            asked = [fleet.chat(), fleet.plain()]
            await when(fleet)
            for _, task, _ in asked:
                task.cancel()
            await at_rest(fleet)
            assert fleet.engines[0].kv.expired == 0
            assert transfers(fleet) == {("apart", "cancelled"): 2}

    run_virtual(main)


@pytest.mark.parametrize("when", [prefilling, moving])
def test_who_leaves_while_the_prompt_is_computed_is_charged_for_it(when: Any) -> None:
    """Once, though two engines had it; as a request, too: else limits would be got round by leaving early."""

    async def main(loop: VirtualLoop) -> None:
        async with apart(loop) as fleet:
            _, task, _ = fleet.chat()
            await when(fleet)
            (exchange,) = fleet.frontends[0].dispatcher._running.values()
            task.cancel()
            await at_rest(fleet)
            assert exchange.sent
            assert delivered_tokens(exchange) == exchange.request.prompt_tokens > 0

    run_virtual(main)


def test_what_only_a_lease_frees_is_free_with_it() -> None:
    """NixlConnector has no call that frees: an engine that answers and dies leaves it to the lease."""

    async def main(loop: VirtualLoop) -> None:
        async with apart(loop, kv=KvShape(HandShake.VLLM_NIXL, 16), decodes=1) as fleet:
            answer, task, _ = fleet.chat()
            await moving(fleet)
            fleet.engines[1].kill()
            await task
            assert answer.status == 502 or answer.status == 503
            await fleet.until(lambda: not fleet.at_rest(), LEASE_S + FREED_WITHIN_S)

    run_virtual(main)


def test_an_engine_for_prompts_that_drains_ends_its_legs_first() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with apart(loop) as fleet:
            asked = [fleet.chat() for _ in range(3)]
            await prefilling(fleet)
            drains = fleet.frontends[0].drains
            drains.begin("e0", "the test says so", 20.0)
            assert drains.in_flight("e0") == 3
            asked.append(fleet.chat())
            await judged(fleet, asked)
            assert fallbacks(fleet) == {}
            assert transfers(fleet) == {("apart", "moved"): 3}
            await fleet.until(lambda: str(drains.of("e0").phase) == "drained", 3.0)  # type: ignore[union-attr]

    run_virtual(main)


@pytest.mark.parametrize("when", [prefilling, moving])
def test_a_drain_without_grace_takes_legs_away(when: Any) -> None:
    async def main(loop: VirtualLoop) -> None:
        async with apart(loop) as fleet:
            asked = [fleet.chat() for _ in range(2)]
            await when(fleet)
            fleet.frontends[0].drains.begin("e0", "the test says so", 0.0)
            assert fleet.frontends[0].drains.requests == {"migrated": 2}
            await judged(fleet, asked)
            assert fallbacks(fleet) == {"worker_drains": 2}

    run_virtual(main)


def test_what_is_cut_at_an_engine_for_prompts_harms_no_stream_that_has_begun() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with apart(loop, decodes=1, rules=NO_FALLBACK) as fleet:
            asked = [fleet.chat(max_tokens=300)]
            await fleet.until(lambda: asked[0][0].tokens)
            late, task, _ = fleet.chat()
            await prefilling(fleet)
            assert fleet.frontends[0].dispatcher.migrate_from("e0/0", "the test says so") == 0
            assert fleet.frontends[0].dispatcher.cut("e0/0", "the test says so") == 1
            await task
            assert (late.status, late.error["message"]) == (503, "the test says so")
            await judged(fleet, asked)

    run_virtual(main)


@pytest.mark.parametrize("when", [prefilling, moving])
def test_the_engine_that_is_to_answer_drains(when: Any) -> None:
    async def main(loop: VirtualLoop) -> None:
        async with apart(loop) as fleet:
            asked = [fleet.chat() for _ in range(2)]
            await when(fleet)
            fleet.frontends[0].drains.begin("e1", "the test says so", 0.0)
            await judged(fleet, asked)
            assert {answer.header(b"x-pointsman-worker") for answer, _, _ in asked} == {b"e2/0"}
            assert fallbacks(fleet) == {}

    run_virtual(main)


@pytest.mark.parametrize("when", [prefilling, moving])
def test_a_front_end_that_stops_cuts_both_legs(when: Any) -> None:
    async def main(loop: VirtualLoop) -> None:
        async with apart(loop) as fleet:
            asked = [fleet.chat(), fleet.plain()]
            await when(fleet)
            assert fleet.frontends[0].dispatcher.cut_all("the test says so") == 2
            for answer, task, _ in asked:
                await task
                assert (answer.status, answer.error["code"]) == (503, "stopping")
            await at_rest(fleet)

    run_virtual(main)


@pytest.mark.parametrize("total_s", [0.5, 1.2])
def test_the_time_of_a_request_is_over_whatever_leg_it_is_at(total_s: float) -> None:
    async def main(loop: VirtualLoop) -> None:
        limits = Timeouts(connect_s=5.0, first_byte_s=60.0, idle_s=60.0, total_s=total_s)
        async with apart(loop, timeouts=limits) as fleet:
            answer, task, _ = fleet.chat()
            await task
            assert answer.status == 504
            await at_rest(fleet)

    run_virtual(main)


def test_streams_that_break_later_go_on_elsewhere_whole() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with apart(loop) as fleet:
            asked = [fleet.chat() for _ in range(4)]
            await fleet.until(lambda: all(answer.tokens > 10 for answer, _, _ in asked))
            fleet.engines[1].kill()
            await judged(fleet, asked)
            assert transfers(fleet) == {("apart", "moved"): 4}
            assert sum(fleet.frontends[0].traffic.migrations.values()) >= 2

    run_virtual(main)


def test_a_shape_that_is_not_told_any_more_moves_nothing() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with apart(loop, rules=TransferRules(TransferMode.OFF), kv=KV) as fleet:
            await judged(fleet, [fleet.chat()])
            assert transfers(fleet) == {}
            assert fleet.engines[0].kv.engine.counters.finished <= 2  # canaries

    run_virtual(main)
