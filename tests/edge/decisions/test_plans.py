"""What records tell of plans that move KV: rows, packed states, what-ifs, searches, sentences."""

from __future__ import annotations

import base64
import zlib
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from pointsman.core.model.decision import PlanRows
from pointsman.core.model.plan import Aggregate
from pointsman.core.model.transfer import USUAL_RULES, TransferMode, TransferRules
from pointsman.core.policies.registry import PolicyRegistry
from pointsman.core.timing.link_times import NO_LINKS, LinkTimes
from pointsman.edge.decisions.explained import explained
from pointsman.edge.decisions.legs_of_row import best_alone, best_plan, chosen_plan, kind_of
from pointsman.edge.decisions.plans import ALONE, APART, PULL, logged_plans
from pointsman.edge.decisions.record import DecisionRecord
from pointsman.edge.decisions.row_search import search_rows
from pointsman.edge.decisions.search import Query, search
from pointsman.edge.decisions.slow import slow_first_token, slow_sentence
from pointsman.edge.decisions.state import StateError, unpack_state
from pointsman.edge.decisions.what_if import summary, what_if
from pointsman.edge.telemetry.decision_row import DecisionRow
from pointsman.edge.wire.usage import Usage
from support.moved_kv import FAST, SLOW, D, E, P, decided, ended, told, view_of

REGISTRY = PolicyRegistry()
HELD: dict[str, Any] = {"cached_tokens": [0, 0, 7_000], "exact": [1, 1, 1], "exclusion": [3, 0, 0]}


def pulled() -> DecisionRecord:
    """d fetches what e, which is far too busy, holds."""
    view = view_of(**HELD, running=[0, 5, 900], prefill_tokens=[0, 0, 900_000], waiting_first=[0, 0, 100])
    return decided(view=view)


def row_of(record: DecisionRecord, **fields: Any) -> DecisionRow:
    return ended(record, **fields).row(state=True)


class TestRows:
    def test_tell_the_chosen_plan_the_best_of_each_kind_and_the_terms(self) -> None:
        row = row_of(decided(), legs=told())
        assert (kind_of(row), row.prefill_worker) == (APART, P)
        plan = chosen_plan(row)
        assert plan is not None
        assert plan.score == pytest.approx(sum(plan.terms.values()), rel=1e-6)
        assert (plan.moved_tokens, plan.moved_bytes) == (8_000, 8_000 * 131_072)
        assert best_plan(row, APART) == plan
        alone = best_alone(row)
        assert alone is not None
        assert row.margin == pytest.approx((alone.score or 0) - (plan.score or 0), abs=1e-5)

    def test_tell_who_is_fetched_from(self) -> None:
        row = row_of(pulled())
        assert (kind_of(row), row.worker, row.pull_source, row.prefill_worker) == (PULL, D, E, None)
        plan = chosen_plan(row)
        assert plan is not None
        assert plan.moved_tokens == 7_000

    def test_tell_nothing_of_it_where_nobody_passes_kv_on(self) -> None:
        row = row_of(decided(view=view_of(kv_group=[0, 0, 0])))
        assert (row.plans, row.legs, kind_of(row)) == ([], None, ALONE)

    def test_have_few_plans_but_the_best_of_each_kind_and_the_chosen_one_always(self) -> None:
        record = decided()
        assert record.decision is not None
        count = 40
        plans = PlanRows(
            prefill=np.array([0] * (count - 1) + [-1]),
            decode=np.ones(count, dtype=np.intp),
            source=np.array([-1] * (count - 1) + [2]),
            moved_tokens=np.full(count, 100),
            scores=np.array([float(i) for i in range(count - 1)] + [np.inf]),
            terms={"ttft_ms": np.arange(count, dtype=float)},
            excluded={count - 1: "would not fit: 1 is free"},
            chosen=30,
        )
        made = replace(record.decision, plans=plans)
        found = logged_plans(made, 5)
        assert [plan.score for plan in found] == [0, 1, 2, 30, 39]
        assert found[-1].excluded == "would not fit: 1 is free"
        assert len(logged_plans(made, None)) == count
        assert logged_plans(made, 1)[0].score == 0

    def test_tell_what_came_of_it_and_survive_json(self) -> None:
        row = row_of(decided(), legs=told())
        again = msgspec.json.decode(msgspec.json.encode(row), type=DecisionRow)
        assert again == row
        assert again.legs is not None
        assert (again.legs.prefill, again.legs.transport, again.legs.fallback) == (P, "nixl", None)

    def test_what_was_cached_is_told_of_the_worker_that_computed_the_prompt(self) -> None:
        usage = Usage(8_000, 50, 7_999)
        view = view_of(cached_tokens=[4_000, 100, 50], exact=[1, 0, 0])
        row = row_of(decided(view=view), legs=told(cached_tokens=3_900), usage=usage)
        assert (row.prefill_worker, row.cached, row.exact, row.cached_reported) == (P, 4_000, True, 3_900)
        fell_back = row_of(decided(view=view), legs=told(fallback="lost"), usage=Usage(8_000, 50, 96))
        assert (fell_back.worker, fell_back.cached, fell_back.exact, fell_back.cached_reported) == (E, 50, False, 96)
        fetched = row_of(pulled(), usage=Usage(8_000, 50, 7_000))
        assert (fetched.cached, fetched.exact, fetched.cached_reported) == (7_000, True, 7_000)


class TestPredictions:
    def test_are_those_of_the_plan_that_was_chosen(self) -> None:
        record = ended(decided(), legs=told())
        plan = chosen_plan(record.row())
        assert plan is not None
        assert record.predicted_ttft_ms == pytest.approx(plan.terms["ttft_ms"] + plan.terms["transfer_ms"])
        alone = best_alone(record.row())
        assert alone is not None
        assert record.predicted_alone_ms == pytest.approx(alone.terms["ttft_ms"])
        assert record.saved_ms == pytest.approx(alone.terms["ttft_ms"] - 250.0)

    def test_of_other_policies_are_by_the_time_model_with_the_link(self) -> None:
        fast = ended(decided(policy="round_robin"), legs=told())
        slow = ended(decided(policy="round_robin", links=SLOW), legs=told())
        assert fast.predicted_ttft_ms is not None
        assert slow.predicted_ttft_ms is not None
        moved = SLOW.of(0, 1).ms(8_000 * 131_072) - FAST.of(0, 1).ms(8_000 * 131_072)
        assert slow.predicted_ttft_ms - fast.predicted_ttft_ms == pytest.approx(moved, rel=1e-6)
        assert fast.predicted_alone_ms is not None

    def test_nothing_was_saved_where_nothing_was_to_be_moved_or_no_token_came(self) -> None:
        assert ended(decided(links=SLOW)).saved_ms is None
        assert ended(decided(), ttft_ms=None, legs=told()).saved_ms is None

    def test_of_a_plan_that_one_worker_carries_out_after_all_are_those_of_that_worker(self) -> None:
        record = decided()
        assert record.decision is not None
        record.decision = replace(record.decision, plan=Aggregate(record.decision.view.workers[1]))
        ended(record)
        assert record.predicted_ttft_ms == pytest.approx(float(record.decision.terms["ttft_ms"][1]))
        assert record.predicted_alone_ms is None


class TestStates:
    @pytest.mark.parametrize("make", [decided, pulled, lambda: decided(policy="least_loaded")])
    def test_lead_to_the_same_plan_again(self, make: Any) -> None:
        record = make()
        row = row_of(record)
        recorded = unpack_state(row.state)
        again = recorded.decide(REGISTRY.get(row.policy))
        assert record.decision is not None
        assert again.plan == record.decision.plan
        assert (recorded.prefill_worker, recorded.pull_source) == (row.prefill_worker, row.pull_source)
        assert again.plans is not None
        assert record.decision.plans is not None
        assert np.array_equal(again.plans.scores, record.decision.plans.scores)

    def test_hold_links_among_the_views_machines_only_and_what_is_thought_of_others(self) -> None:
        links = unpack_state(row_of(decided()).state).links
        assert set(links.pairs) == {(0, 1)}
        for pair in ((0, 1), (1, 0), (0, 2), (1, 2), (1, 1)):
            assert links.of(*pair) == FAST.of(*pair)

    def test_hold_the_operators_rules(self) -> None:
        rules = TransferRules(TransferMode.ALWAYS, 10**12, False)
        record = decided(view=replace(view_of(), transfer=rules))
        assert unpack_state(row_of(record).state).view.transfer == rules

    def test_of_before_there_were_links_are_read_with_usual_ones(self) -> None:
        recorded = unpack_state(self.changed(row_of(decided()).state, links=None, transfer=None, prefill_worker=None))
        assert (recorded.links, recorded.view.transfer, recorded.prefill_worker) == (NO_LINKS, USUAL_RULES, None)

    @pytest.mark.parametrize(
        "fields",
        [
            {"transfer": ["sometimes", 0, True]},
            {"links": [[], [0.1, [1.0] * 4, 1.0, 0.0], {}, [["x", -1.0, 0.0], [], ["y", 1.0, 0.0]]]},
            {"links": [[["a", 1, 2]], [0.1, [1.0] * 4, 1.0, 0.0]]},
        ],
    )
    def test_that_are_damaged_are_refused(self, fields: dict[str, Any]) -> None:
        with pytest.raises(StateError, match="damaged"):
            unpack_state(self.changed(row_of(decided()).state, **fields))

    def changed(self, text: str, **fields: Any) -> str:
        raw = msgspec.msgpack.decode(zlib.decompress(base64.b64decode(text)))
        raw = {name: value for name, value in (raw | fields).items() if value is not None}
        return base64.b64encode(zlib.compress(msgspec.msgpack.encode(raw))).decode()

    def test_without_kv_have_no_links_in_them(self) -> None:
        row = row_of(decided(view=view_of(kv_group=[0, 0, 0])))
        assert unpack_state(row.state).links == NO_LINKS


class TestWhatIf:
    def test_compares_plans_by_the_judges_terms(self) -> None:
        cost = REGISTRY.get("cost")
        state = unpack_state(row_of(decided()).state)
        same = what_if(state, cost, cost)
        assert (same.changed, same.dearer_ms) == (False, 0.0)
        assert same.recorded is not None
        assert same.recorded.prefill == P
        assert same.recorded.score == pytest.approx(sum(same.recorded.terms.values()), rel=1e-6)
        other = what_if(replace(state, view=replace(state.view, transfer=TransferRules(TransferMode.OFF))), cost, None)
        assert other.changed
        assert other.sentence == f"cost would have chosen {D} instead of {P} → {E}"

    def test_a_pair_that_the_judge_did_not_think_of_has_no_score(self) -> None:
        state = unpack_state(row_of(decided(policy="round_robin")).state)
        answer = what_if(state, REGISTRY.get("cost"), REGISTRY.get("cost"))
        assert answer.recorded is not None
        assert answer.recorded.prefill == P
        gone = replace(state, prefill_worker=None, pull_source=state.view.workers[2])
        assert what_if(gone, REGISTRY.get("cost"), REGISTRY.get("cost")).dearer_ms is None

    def test_a_summary_tells_of_plans(self) -> None:
        state = unpack_state(row_of(decided()).state)
        told = summary("round_robin", [what_if(state, REGISTRY.get("round_robin"))])
        assert "another plan in 1 of 1 decision" in told.sentence


class TestSearches:
    def test_find_by_the_worker_for_prefill(self) -> None:
        records = [ended(decided("a")), ended(decided("b", links=SLOW))]
        query = Query.of([("prefill_worker", P)])
        assert [one.request.id for one in search(records, query)[0]] == ["a"]
        assert [one.id for one in search_rows([one.row() for one in records], query)] == ["a"]


class TestSentences:
    def test_say_who_does_what_and_why(self) -> None:
        row = row_of(decided(), legs=told())
        answer = explained(row, unpack_state(row.state))
        assert answer.why.startswith(f"{P} computes the prompt for {E}, which gets KV of 8,000 tokens (1,049 MB): {D} ")
        assert "more until the prompt is computed" in answer.why
        assert answer.moved is None
        assert answer.came is not None
        assert f"{P} had computed the prompt after 180 ms" in answer.came
        assert "over nixl" in answer.came

    def test_say_why_it_was_not_moved(self) -> None:
        row = row_of(decided(links=SLOW))
        answer = explained(row, unpack_state(row.state))
        assert answer.moved is not None
        assert answer.moved.startswith("prefill and decode apart (p/0 → d/0) would have cost ")
        assert "more for moving KV" in answer.moved
        assert answer.came is None

    def test_say_what_was_excluded(self) -> None:
        rules = TransferRules(TransferMode.AUTO, 1_000)
        row = row_of(decided(view=replace(view_of(), transfer=rules)))
        answer = explained(row, None)
        assert answer.moved is not None
        assert "was excluded: 1,048,576,000 bytes would be moved, 1,000 are allowed" in answer.moved

    def test_say_that_the_operator_wants_it_in_spite(self) -> None:
        row = row_of(decided(view=view_of(TransferMode.ALWAYS), links=SLOW))
        assert kind_of(row) == APART
        assert "the operator wants it so" in explained(row, None).why

    def test_of_a_pull_name_the_source(self) -> None:
        why = explained(row_of(pulled()), None).why
        assert why.startswith(f"{D} fetches KV of 7,000 tokens (918 MB) from {E} and computes the rest")

    def test_of_policies_without_times_say_only_what_was_done(self) -> None:
        answer = explained(row_of(decided(policy="round_robin")), None)
        assert answer.why == f"{P} computes the prompt for {D}, which gets KV of 8,000 tokens (1,049 MB)"

    def test_of_what_failed_tell_the_reason(self) -> None:
        row = row_of(decided(), legs=told(fallback="connection lost"))
        came = explained(row, None).came
        assert came == f"nothing came from {P}, so {E} computed all of it: connection lost"

    def test_time_that_was_lost_waiting_for_kv_that_never_came_is_named_and_is_nobody_s_slowness(self) -> None:
        lost = told(fallback="connection lost", lost_ms=4_000.0, prefill_ms=None, transfer_ms=None)
        row = row_of(decided(), ttft_ms=4_400.0, legs=lost)
        around = [row_of(decided(f"pm-1-{number}"), ttft_ms=4_400.0, legs=lost) for number in range(2, 20)]
        causes = slow_first_token(row, around, {})
        assert (causes[0].kind, causes[0].ms) == ("fallback", pytest.approx(4_000.0))
        assert sum(cause.ms for cause in causes) == pytest.approx(row.first_token_ms)
        assert "slow_worker" not in {cause.kind for cause in causes}
        assert f"because {E} waited for KV from {P}, and nothing came" in slow_sentence(row, causes)

    def test_of_a_slow_first_token_share_it_out_among_the_legs(self) -> None:
        row = row_of(decided(), ttft_ms=2_000.0, legs=told(transfer_ms=1_500.0))
        slow = explained(row, None, of="ttft").slow
        assert slow is not None
        assert [(cause.kind, round(cause.ms)) for cause in slow.causes] == [
            ("transfer", 1500),
            ("waiting", 320),
            ("prefill", 180),
            ("front_end", 2),
        ]
        assert "KV was moved from p/0 to e/0, 1,048.6 MB" in slow.sentence


def test_the_size_of_a_record_counts_what_its_plans_hold() -> None:
    with_plans, without = ended(decided()), ended(decided(view=view_of(kv_group=[0, 0, 0])))
    assert with_plans.size_bytes > without.size_bytes + 3_000


def test_links_that_nobody_measured_take_no_room() -> None:
    assert unpack_state(row_of(decided(links=LinkTimes())).state).links == LinkTimes()
