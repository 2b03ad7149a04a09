"""Records and their rows: candidates, what was predicted and came true, promises, sampling."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import msgspec
import numpy as np
import pytest

from pointsman.core.model.outlook import Outlook
from pointsman.core.model.slo import Slo
from pointsman.core.model.view import Exclusion, FleetView
from pointsman.core.policies.policy import decision
from pointsman.core.policies.registry import PolicyRegistry
from pointsman.core.timing.fleet_times import FleetTimes
from pointsman.core.timing.prediction import Load, ttft_ms
from pointsman.core.timing.worker_times import WorkerTimes
from pointsman.edge.decisions.candidates import exclusions, logged_candidates
from pointsman.edge.decisions.predicted import predicted_times
from pointsman.edge.decisions.record import DecisionRecord
from pointsman.edge.decisions.sampling import Sampling
from pointsman.edge.telemetry.decision_row import DecisionRow, hashed
from pointsman.edge.wire.usage import Usage
from support.decisions import STEP, busy_view, decided, ended, request, times_of


class TestCandidates:
    @pytest.mark.parametrize("policy", PolicyRegistry().names())
    def test_they_are_those_of_the_decision_in_its_order(self, policy: str) -> None:
        for seed in range(10):
            made = decided(policy=policy, view=busy_view(7, seed)).decision
            assert made is not None
            told, whole = logged_candidates(made), made.candidates()
            assert {one.worker for one in told} == {one.worker for one in whole}
            by_name = {one.worker: one for one in whole}
            for one in told:
                expected = by_name[one.worker]
                assert (one.excluded, one.cached, one.load) == (
                    expected.excluded,
                    expected.cached_tokens,
                    expected.load,
                )
                assert one.score == (None if expected.score is None else pytest.approx(expected.score, abs=1e-6))
                assert one.terms == pytest.approx(dict(expected.terms), abs=1e-6)
            scores = [one.score for one in told if one.score is not None]
            assert scores == sorted(scores)
            assert all(one.excluded for one in told[len(scores) :])
            cut = logged_candidates(made, 3)
            assert cut[:2] == told[:2]
            assert made.worker in {one.worker for one in cut}

    def test_weights_are_told_where_they_are_not_1(self) -> None:
        view = FleetView.of(["a/0", "b/0"], weight_permille=[1000, 2500], running=[0, 3])
        made = decided(policy="round_robin", view=view).decision
        assert made is not None
        assert [one.weight for one in logged_candidates(made)] == [None, 2.5]
        assert [b"weight" in msgspec.json.encode(one) for one in logged_candidates(made)] == [False, True]

    def test_the_chosen_one_is_first_among_equals(self) -> None:
        view = FleetView.of(["a/0", "b/0", "c/0"])
        made = decision("p", request(), view, 0.0, 2, np.zeros(3), "ms")
        assert [one.worker for one in logged_candidates(made)] == ["c/0", "a/0", "b/0"]

    def test_what_is_no_number_can_be_written_and_is_last(self) -> None:
        view = FleetView.of(["a/0", "b/0", "c/0", "d/0"])
        scores = np.array([math.nan, math.inf, 1.0, -math.inf])
        made = decision("p", request(), view, 0.0, 2, scores, "ms", {"x_ms": scores})
        told = logged_candidates(made)
        assert [one.worker for one in told][:2] == ["d/0", "c/0"]
        again = msgspec.json.decode(msgspec.json.encode(told), type=list[type(told[0])])  # type: ignore[misc]
        assert again == told

    def test_exclusions_are_counted_whole(self) -> None:
        codes = [0, Exclusion.DRAINING, Exclusion.DRAINING, Exclusion.QUEUE_FULL]
        view = FleetView.of(["a/0", "b/0", "c/0", "d/0"], exclusion=codes)
        made = decision("p", request(), view, 0.0, 0, np.zeros(4), "ms")
        assert exclusions(made) == {Exclusion.DRAINING.text: 2, Exclusion.QUEUE_FULL.text: 1}


class TestPredicted:
    def test_policies_without_a_prediction_get_that_of_the_time_model(self) -> None:
        view = FleetView.of(
            ["a/0", "b/0"], running=[9, 9], waiting_first=[2, 2], prefill_tokens=[500, 500], kv_tokens=[20_500, 20_500],
            cached_tokens=[1000, 1000],
        )  # fmt: skip
        times = FleetTimes({name: WorkerTimes(STEP, 1.5, (1.1, 1.7), (0.9, 2.1)) for name in view.workers})
        record = ended(decided(policy="round_robin", view=view, times=times))
        load = Load(sequences=7, context_tokens=20_000, waiting_prefill_tokens=500, waiting=2)
        expected = 1.5 + 0.9 * ttft_ms(STEP, load, 2000, cached_tokens=1000)
        assert record.predicted_ttft_ms == pytest.approx(expected)
        between = STEP.step_ms(10, 20_500 + 3000 + view.outlook.output_tokens / 2, 0.0)
        assert record.predicted_tpot_ms == pytest.approx(1.1 * between)
        assert record.error_ms == pytest.approx(abs(50 - expected))

    def test_a_policy_that_predicts_is_taken_at_its_word(self) -> None:
        view = busy_view()
        rows = times_of(view).rows(view.workers)
        view = replace(view, outlook=Outlook(output_tokens=51.0))
        terms = {"ttft_ms": np.array([5.0, 6.0, 7.0, 8.0]), "completion_ms": np.array([0.0, 1.0, 507.0, 2.0])}
        made = decision("p", request(), view, 0.0, 2, terms["ttft_ms"], "ms", terms)
        assert predicted_times(request(), made, rows) == (7.0, 10.0)
        assert predicted_times(request(), replace(made, unit="tokens"), rows)[0] != 7.0
        made.terms["ttft_ms"][2] = math.inf
        assert predicted_times(request(), made, rows)[0] is None

    def test_nothing_is_predicted_where_nothing_is_known(self) -> None:
        record = ended(decided(times=FleetTimes({})))
        assert (record.predicted_ttft_ms, record.predicted_tpot_ms, record.error_ms) == (None, None, None)

    def test_nor_of_a_worker_of_which_nothing_is(self) -> None:
        view = FleetView.of(["a/0", "b/0"], exclusion=[0, Exclusion.DRAINING])
        assert ended(decided(view=view, times=times_of(view))).predicted_ttft_ms is None

    def test_nor_where_nobody_was_chosen(self) -> None:
        view = FleetView.of(["a/0"], exclusion=[Exclusion.DRAINING])
        record = ended(decided(view=view, times=FleetTimes({"a/0": WorkerTimes(STEP)})), status="failed", http=503)
        assert record.predicted_ttft_ms is None
        row = record.row()
        assert (row.worker, row.workers, row.excluded) == (None, 1, {"draining": 1})
        assert row.candidates[0].excluded == "draining"


class TestRow:
    def test_times_and_what_became_of_it(self) -> None:
        record = ended(decided(), gap_ms=31.0, usage=Usage(3000, 99, 1500), client_id=b"mine", arm="trial")
        record.shadows = {"prefix": "gpu-0/0"}
        row = record.row()
        assert (row.dispatched_ms, row.first_token_ms, row.last_token_ms) == (2.0, 52.0, 542.0)
        assert (row.ttft_ms, row.gap_ms) == (50.0, 31.0)
        assert row.itl_ms == 5.0  # 490 ms for 98 further tokens, whatever the number of pieces
        assert (row.output_tokens, row.cached_reported, row.prompt_from) == (99, 1500, "engine")
        assert row.prompt_expected is None
        assert ended(decided(), usage=Usage(2900, 99, 1500)).row().prompt_expected == 3000
        assert (row.client, row.arm, row.shadows) == (hashed("mine"), "trial", {"prefix": "gpu-0/0"})
        assert row.state == ""
        assert record.row(state=True).state
        assert msgspec.json.decode(msgspec.json.encode(row), type=DecisionRow) == row

    def test_while_it_runs(self) -> None:
        row = decided().row()
        assert (row.status, row.http, row.ttft_ms, row.last_token_ms) == ("running", 0, None, None)
        assert row.candidates

    def test_without_a_decision(self) -> None:
        record = DecisionRecord(request(), 1e12, 1, status="failed", http=500)
        record.conclude()
        row = record.row(state=True)
        assert (row.policy, row.worker, row.candidates, row.state) == ("", None, [], "")
        assert record.size_bytes > 0

    def test_the_runner_up_is_as_far_behind_as_its_score(self) -> None:
        row = decided(view=busy_view(9)).row()
        best, second = row.candidates[:2]
        assert row.runner_up == second.worker
        assert row.margin == pytest.approx((second.score or 0) - (best.score or 0), abs=1e-5)

    def test_several_answers_come_side_by_side(self) -> None:
        record = ended(decided(request(sequences=2)), usage=Usage(3000, 200, 0))
        assert record.itl_ms == pytest.approx(490 / 99)

    def test_one_piece_has_no_time_between_pieces(self) -> None:
        assert ended(decided(), events=1).itl_ms is None

    def test_larger_ones_have_larger_sizes(self) -> None:
        sizes = [ended(decided(view=busy_view(count))).size_bytes for count in (1, 8, 64, 256)]
        assert all(one < other for one, other in pairwise(sizes))


class TestPromises:
    @pytest.mark.parametrize(
        ("slo", "fields", "missed"),
        [
            (Slo(52.0, 10.0), {}, []),
            (Slo(51.9, 10.0), {}, ["ttft"]),
            (Slo(None, 9.9), {}, ["tpot"]),
            (Slo(10.0, 1.0), {}, ["ttft", "tpot"]),
            (None, {}, []),
            (Slo(1e6), {"ttft_ms": None, "status": "failed"}, ["ttft"]),
            (Slo(1.0), {"ttft_ms": None, "status": "cancelled"}, []),
            (Slo(1.0), {"ttft_ms": None, "status": "refused"}, []),
        ],
    )
    def test_which_were_missed(self, slo: Slo | None, fields: dict[str, object], missed: list[str]) -> None:
        record = ended(decided(request(slo=slo)), **fields)  # type: ignore[arg-type]
        assert record.missed() == record.row().slo_missed == missed

    def test_those_that_run_missed_none_yet(self) -> None:
        assert decided(request(slo=Slo(1.0))).missed() == []


class TestSampling:
    def test_about_so_many_are_written_and_always_the_same(self) -> None:
        finished = [ended(decided(request(f"pm-a-{number}"), "random")) for number in range(2000)]
        sampling = Sampling(0.1, 0.5)
        written = [record for record in finished if sampling.chance(record) is not None]
        assert 140 <= len(written) <= 260
        assert {sampling.chance(record) for record in written} == {0.1}
        assert written == [record for record in finished if Sampling(0.1).chance(record) is not None]
        assert set(map(id, written)) < {id(record) for record in finished if Sampling(0.3).chance(record) is not None}
        with_state = sum(sampling.with_state(record) for record in written)
        assert 0.35 < with_state / len(written) < 0.65

    def test_what_went_wrong_is_always_written(self) -> None:
        nothing = Sampling(0.0)
        assert nothing.chance(ended(decided())) is None
        assert nothing.chance(ended(decided(), status="cancelled")) is None
        assert nothing.chance(ended(decided(), status="failed")) == 1.0
        assert nothing.chance(ended(decided(request(slo=Slo(1.0))))) == 1.0

    def test_all_or_nothing(self) -> None:
        record = ended(decided())
        assert Sampling().chance(record) == 1.0
        assert not Sampling().with_state(record)
        assert Sampling(1.0, 1.0).with_state(record)
