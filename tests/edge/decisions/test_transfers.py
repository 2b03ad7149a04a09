"""Sums of what moving KV saved and lost."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from pointsman.core.model.transfer import TransferMode, TransferRules
from pointsman.edge.decisions.record import DecisionRecord
from pointsman.edge.decisions.ring import DecisionRing
from pointsman.edge.decisions.transfer_routes import TransferRoutes
from pointsman.edge.decisions.transfers import HOUR_MS, Moved, TransferReport, TransferSums, merged
from pointsman.edge.telemetry.decision_row import DecisionRow
from support.moved_kv import SLOW, D, E, P, decided, ended, told, view_of

ALONE_MS = 503.1
"""What is predicted of d/0 alone."""
MACHINES = {P: "h0", D: "h1", E: "h2"}


def moved(ttft_ms: float, name: str = "r", at_ms: float = 0.0, **fields: object) -> DecisionRow:
    row = ended(decided(name), ttft_ms, legs=told(**fields)).row()
    row.at_ms = at_ms
    return row


def report(*rows: DecisionRow, machines: dict[str, str] | None = None) -> TransferReport:
    sums = TransferSums(machines)
    for row in rows:
        sums.add(row)
    return sums.report()


class TestSums:
    def test_saved_and_lost_are_against_what_was_predicted_of_the_best_worker_alone(self) -> None:
        answer = report(moved(203.1), moved(303.1), moved(603.1))
        total = answer.total
        assert total.saved_ms == pytest.approx(300 + 200, abs=1)
        assert total.lost_ms == pytest.approx(100, abs=1)
        assert (total.requests, total.sooner, total.fallbacks, total.unknown) == (3, 2, 0, 0)
        assert total.alone_ms == pytest.approx(3 * ALONE_MS, abs=1)
        assert total.observed_ms == pytest.approx(1109.3)
        assert total.saved_ms - total.lost_ms == pytest.approx(total.alone_ms - total.observed_ms)
        assert (total.transfers, total.transfer_ms, total.bytes) == (3, 120.0, 3 * 1_048_576_000)
        assert "133 ms sooner on average than was predicted without it" in answer.sentence

    def test_are_told_by_hour_link_and_workers(self) -> None:
        answer = report(
            moved(200.0, at_ms=0.0), moved(200.0, at_ms=HOUR_MS - 1), moved(200.0, at_ms=HOUR_MS), machines=MACHINES
        )
        assert [(hour.at_ms, hour.moved.requests) for hour in answer.hours] == [(HOUR_MS, 1), (0.0, 2)]
        assert [(group.name, group.moved.requests) for group in answer.links] == [("h0 → h2", 3)]
        assert [group.name for group in answer.pairs] == [f"{P} → {E}"]
        assert [group.name for group in report(moved(200.0)).links] == ["p → e"]
        assert set(answer.kinds) == {"apart"}

    def test_what_fell_back_counts_as_time_but_not_as_a_transfer(self) -> None:
        answer = report(moved(900.0, fallback="it was lost: ReadTimeout"), moved(900.0, fallback="it was lost: EOF"))
        assert answer.fallbacks == {"it was lost": 2}
        assert (answer.total.fallbacks, answer.total.transfers, answer.total.bytes) == (2, 0, 0)
        assert answer.total.lost_ms == pytest.approx(2 * (900 - ALONE_MS), abs=2)
        assert "for 2 nothing came" in answer.sentence

    def test_of_which_nothing_can_be_said_are_only_counted(self) -> None:
        failed = moved(100.0)
        failed.status = "failed"
        silent = ended(decided(), None, legs=told()).row()
        answer = report(failed, silent)
        assert (answer.total.requests, answer.total.unknown, answer.total.saved_ms) == (0, 2, 0.0)

    def test_what_was_observed_counts_also_where_nothing_was_predicted(self) -> None:
        young, gone = moved(100.0), moved(100.0, fallback="it was lost: EOF")
        young.predicted_alone_ms = None
        gone.status = "cancelled"
        total = report(young, gone).total
        assert (total.requests, total.unknown, total.saved_ms, total.observed_ms) == (0, 2, 0.0, 0.0)
        assert (total.transfers, total.transfer_ms, total.bytes, total.fallbacks) == (1, 40.0, 1_048_576_000, 1)

    def test_of_those_that_left_before_anything_was_moved_no_bytes_count(self) -> None:
        legs = told(prefill_ms=None, transfer_ms=None, moved_tokens=None, moved_bytes=None, transport=None)
        left = ended(decided(), None, legs=legs).row()
        left.status = "cancelled"
        total = report(left).total
        assert (total.unknown, total.transfers, total.bytes) == (1, 0, 0)

    @pytest.mark.parametrize(
        ("reason", "told_as"),
        [
            ("http://127.0.0.1:9141 closed the connection before it answered",
             "an engine closed the connection before it answered"),
            ("can't connect to http://h:1: [Errno 111] Connection refused", "can't connect to an engine"),
            ("the KV could not be passed on at d/0: answered 503", "the KV could not be passed on at d/0"),
        ],
    )  # fmt: skip
    def test_reasons_say_what_happened_whatever_addresses_are_in_them(self, reason: str, told_as: str) -> None:
        assert report(moved(900.0, fallback=reason)).fallbacks == {told_as: 1}

    def test_bytes_that_no_engine_told_are_reckoned_from_the_tokens(self) -> None:
        assert report(moved(200.0, moved_bytes=None, moved_tokens=4_000)).total.bytes == 4_000 * 131_072
        assert report(moved(200.0, moved_bytes=None, moved_tokens=None)).total.bytes == 8_000 * 131_072

    def test_requests_that_would_have_been_better_off_are_counted_with_the_reason(self) -> None:
        rules = TransferRules(TransferMode.AUTO, 1_000)
        small = ended(decided(view=replace(view_of(), transfer=rules))).row()
        full = ended(decided(view=view_of(kv_capacity_tokens=[400_000, 60_500, 80_500]))).row()
        answer = report(small, full, ended(decided(links=SLOW)).row())
        assert answer.not_moved.requests == 2
        assert answer.not_moved.cheaper_ms > 60
        assert answer.not_moved.reasons == {"N bytes would be moved, N are allowed": 1, "would not fit": 1}
        assert (answer.decisions, answer.with_plans) == (3, 3)
        assert "for 2 others it was predicted to be cheaper and was not done" in answer.sentence

    def test_what_the_operator_wants_in_spite_is_counted(self) -> None:
        row = ended(decided(view=view_of(TransferMode.ALWAYS), links=SLOW), legs=told()).row()
        assert report(row, moved(200.0)).in_spite == 1

    def test_fleets_that_move_nothing_are_told_so(self) -> None:
        row = ended(decided(view=view_of(kv_group=[0, 0, 0]))).row()
        assert report(row).sentence == "no KV was moved for any of 1 request, and no plan could have"
        assert report(ended(decided(links=SLOW)).row()).sentence.endswith("though it could have been for 1")

    def test_of_several_front_ends_are_those_of_one(self) -> None:
        rows = [moved(100.0 * number, f"r{number}", number * HOUR_MS / 2) for number in range(1, 9)]
        rows.append(moved(900.0, "x", fallback="lost"))
        whole, parts = report(*rows), merged([report(*rows[:4]), report(*rows[4:])])
        for name in Moved.__struct_fields__:
            assert getattr(parts.total, name) == pytest.approx(getattr(whole.total, name)), name
        assert [hour.at_ms for hour in parts.hours] == [hour.at_ms for hour in whole.hours]
        assert [group.moved.requests for group in parts.pairs] == [group.moved.requests for group in whole.pairs]
        assert (parts.decisions, parts.since_ms, parts.fallbacks) == (whole.decisions, whole.since_ms, whole.fallbacks)
        assert parts.sentence == whole.sentence

    def test_groups_are_bounded(self) -> None:
        sums = TransferSums()
        for number in range(300):
            row = moved(200.0)
            row.prefill_worker = f"p{number}/0"
            sums.add(row)
        answer = sums.report()
        assert len(answer.pairs) == 201
        assert answer.pairs[-1].name == "others"
        assert sum(group.moved.requests for group in answer.pairs) == 300


class TestRoute:
    async def ask(self, ring: DecisionRing, query: str) -> tuple[int, bytes]:
        app = web.Application()
        app.add_routes(TransferRoutes(ring, lambda: MACHINES).routes())
        async with TestClient(TestServer(app, host="127.0.0.1")) as client:
            answer = await client.get(f"/v1/transfers{query}")
            return answer.status, await answer.read()

    def ring(self, *records: DecisionRecord, most: int = 100) -> DecisionRing:
        ring = DecisionRing(most)
        for record in records:
            ring.begin(record)
            ring.end(record)
        return ring

    async def test_sums_up_what_is_kept_and_has_ended(self) -> None:
        ring = self.ring(
            ended(decided("a"), legs=told()),
            ended(decided("b", links=SLOW)),
            ended(decided("c", view=view_of(kv_group=[0, 0, 0]))),
        )
        ring.begin(decided("runs"))
        status, body = await self.ask(ring, "")
        answer = msgspec.json.decode(body, type=TransferReport)
        assert status == 200
        assert (answer.decisions, answer.with_plans, answer.total.requests) == (3, 2, 1)
        assert [group.name for group in answer.links] == ["h0 → h2"]
        assert answer.notes == []

    async def test_can_be_narrowed_and_says_what_it_lost(self) -> None:
        ring = self.ring(*(ended(decided(f"r{number}"), legs=told()) for number in range(9)), most=4)
        answer = msgspec.json.decode((await self.ask(ring, "?last=2"))[1], type=TransferReport)
        assert answer.decisions == 2
        assert "only the last 4 are kept" in answer.notes[0]
        for query in ("?prefill_worker=x/0", "?until=1", "?model=n"):
            assert msgspec.json.decode((await self.ask(ring, query))[1], type=TransferReport).decisions == 0

    @pytest.mark.parametrize("query", ["?worst=ttft", "?since=soon", "?x=1", "?last=0", "?model=m&model=n"])
    async def test_bad_parameters_are_named(self, query: str) -> None:
        status, body = await self.ask(self.ring(), query)
        assert status == 400
        assert json.loads(body)["error"]["param"] == query[1:].partition("=")[0]
