"""Plans that move KV, beside those for one worker."""

from __future__ import annotations

import gc
import random
import weakref
from dataclasses import replace

import numpy as np
import pytest

from pointsman.core.model.decision import Decision, PlanRows, PlanRowsLater
from pointsman.core.model.outlook import Outlook
from pointsman.core.model.plan import Aggregate, Disaggregate, Pull
from pointsman.core.model.slo import Slo
from pointsman.core.model.view import Exclusion, FleetView
from pointsman.core.policies.cost import plans as cost_plans
from pointsman.core.policies.cost.cost import NOTHING_KNOWN, Cost
from pointsman.core.policies.cost.load import Floats
from pointsman.core.policies.cost.moves import RELIEF_SHARE, Moves, Scene, move_terms
from pointsman.core.policies.pairs import BYTES_UNKNOWN
from pointsman.core.policies.registry import PolicyRegistry
from pointsman.core.timing.fleet_times import FleetTimes
from pointsman.core.timing.link_rows import LinkRows
from pointsman.core.timing.link_times import LinkTimes
from pointsman.core.timing.spread import mean_excess
from pointsman.core.timing.step import StepCoefficients
from support.plan_fleets import ALL_SIDES, KNOWN, REQUEST, STEP, backlog, decide, fleet, link, rules, times

FAST = link(1e6)


def number_of(made: Decision, *, prefill: int = -1, decode: int, source: int = -1) -> int:
    plans = made.plans
    assert plans is not None
    found = (plans.prefill == prefill) & (plans.decode == decode) & (plans.source == source)
    assert found.sum() == 1, (plans.prefill, plans.decode, plans.source)
    return int(found.argmax())


def term(made: Decision, name: str, **plan: int) -> float:
    assert made.plans is not None
    return float(made.plans.terms[name][number_of(made, **plan)])


class TestPrefillAndDecodeApart:
    def test_a_busy_worker_leaves_the_prompt_to_an_idle_one_for_prompts(self) -> None:
        made = decide(view := fleet("pd", **backlog("pd", w1=20_000)), times(view, FAST))
        assert made.plan == Disaggregate(view.workers[0], view.workers[1])
        assert made.worker == "w1/0"
        assert made.prefill_worker == "w0/0"

    def test_an_idle_worker_computes_it_itself(self) -> None:
        made = decide(view := fleet("pd"), times(view, FAST))
        assert made.plan == Aggregate(view.workers[1])
        assert made.plans is not None
        assert len(made.plans.scores) == 1

    def test_a_worker_without_its_own_prompts_gives_none_away_to_itself(self) -> None:
        assert decide(fleet("b")).plans is None

    @pytest.mark.parametrize(("gb_per_s", "apart"), [(2.0, False), (40.0, True)])
    def test_what_waits_at_the_one_that_answers_is_waited_for_by_what_others_computed_too(
        self, gb_per_s: float, apart: bool
    ) -> None:
        """All that is gained is the time of the own prompt, so it goes where the way is shorter than that."""
        view = fleet("pd", **backlog("pd", w1=60_000))
        made = decide(view, times(view, link(gb_per_s)))
        assert (made.prefill_worker is not None) is apart
        alone_ms = float(made.terms["ttft_ms"][1])
        assert term(made, "ttft_ms", prefill=0, decode=1) == pytest.approx(alone_ms - 0.05 * 4_000, rel=0.05)

    def test_others_wait_as_long_for_prompts_that_are_there_whoever_computes_this_one(self) -> None:
        outlook = Outlook(100.0, reuse=0.0, evictions_seen=1e12, arrivals_per_s=4.0)
        view = fleet("pd", outlook=outlook, **backlog("pd", w1=60_000))
        made = decide(view, times(view, link(0.1)), replace(REQUEST, prompt_tokens=50))
        assert made.plan == Aggregate(view.workers[1])
        here, there = float(made.terms["slowdown_ms"][1]), term(made, "slowdown_ms", prefill=0, decode=1)
        assert there == pytest.approx(here, rel=0.01)

    def test_short_prompts_stay_where_they_are_by_arithmetic(self) -> None:
        """The prompt at which it flips is where the wait ends that the transfer and the other step take."""
        view = fleet("pd", outlook=Outlook(1.0, reuse=0.0, evictions_seen=1e12), **backlog("pd", w1=2_000))
        faster = StepCoefficients(10.0, 0.05, 0.06, 0.01)
        timing = times(view, link(10.0, 20.0), faster, STEP)

        def apart(prompt: int) -> bool:
            return decide(view, timing, replace(REQUEST, prompt_tokens=prompt)).prefill_worker is not None

        low, high = 1, 8_000
        assert not apart(low)
        assert apart(high)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if apart(middle) else (middle, high)
        # Here: half of the running step with the 2,000 tokens, a step, own tokens; and as long for those it slows.
        # There: a step and own tokens, the way, then half of the running step and its own step here.
        step = 10.0 + 0.05 + 0.06 * 2
        join = (step + 0.05 * 2_000) / 2 + step + 0.05 + 0.06 * (high + 0.5) / 1000
        here = (step + 0.05 * 2_000) / 2 + step
        expected = (10.0 + 20.0 + join - here) / (0.05 - 0.01 - 131_072 / 10e6)
        assert high == pytest.approx(expected, rel=0.01)

    def test_what_the_decode_side_holds_is_not_moved(self) -> None:
        view = fleet("pdd", cached_tokens=[0, 0, 3_000], **backlog("pdd", w1=30_000, w2=30_000))
        made = decide(view, times(view, link(1.0, 5.0)))
        assert made.plans is not None
        moved = made.plans.moved_tokens[[number_of(made, prefill=0, decode=n) for n in (1, 2)]]
        assert moved.tolist() == [4_000, 1_000]
        assert term(made, "transfer_ms", prefill=0, decode=2) == pytest.approx(5 + 1_000 * 131_072 / 1e6)
        assert made.worker == "w2/0"

    def test_transfers_that_go_first_are_waited_for_beyond_the_time_of_the_prompt(self) -> None:
        view = fleet("pdd", transfers_out=[2, 0, 0], transfers_in=[0, 0, 4])
        made = decide(view, times(view, link(1.0, 7.0)))
        alone_ms, prompt_ms = 4_000 * 131_072 / 1e6, 10 + 0.05 * 4_000
        assert term(made, "transfer_ms", prefill=0, decode=1) == pytest.approx(7 + 3 * alone_ms - prompt_ms)
        assert term(made, "transfer_ms", prefill=0, decode=2) == pytest.approx(7 + 5 * alone_ms - prompt_ms)
        fast = decide(view, times(view, link(40.0, 7.0)))
        assert term(fast, "transfer_ms", prefill=0, decode=2) == pytest.approx(7 + alone_ms / 40)

    def test_prompts_that_wait_for_their_own_transfers_go_first(self) -> None:
        view = fleet("pdb", waiting_first=[3, 2, 2], prefill_tokens=[0, 0, 9_000])
        made = decide(view, times(view, link(1.0)))
        alone_ms, prompt_ms = 4_000 * 131_072 / 1e6, float(made.terms["ttft_ms"][0])
        assert term(made, "transfer_ms", prefill=0, decode=1) == pytest.approx(4 * alone_ms - prompt_ms)
        both_ms = float(made.terms["ttft_ms"][2])
        assert term(made, "transfer_ms", prefill=2, decode=1) == pytest.approx(3 * alone_ms - both_ms)

    def test_each_pair_has_its_own_link(self) -> None:
        view = fleet("ppd", **backlog("ppd", w2=40_000))
        near = LinkTimes({(1, 2): link(100.0)}, link(0.5))
        assert decide(view, times(view, near)).prefill_worker == "w1/0"

    def test_workers_of_different_groups_do_not_pair(self) -> None:
        busy = backlog("pd", w1=40_000)
        assert decide(fleet("pd", kv_group=[1, 2], **busy)).plans is None
        assert decide(fleet("pd", kv_group=[0, 0], **busy)).plans is None
        assert decide(fleet("pd", kv_sides=[ALL_SIDES, 1], **busy)).plans is None

    @pytest.mark.parametrize("reason", [Exclusion.DRAINING, Exclusion.ALREADY_TRIED, Exclusion.AT_CAP])
    def test_a_worker_for_prompts_that_may_not_is_left_out(self, reason: Exclusion) -> None:
        view = fleet("ppd", exclusion=[int(reason), int(Exclusion.ROLE), 0], **backlog("ppd", w2=40_000))
        assert decide(view).prefill_worker == "w1/0"

    def test_what_others_wait_for_is_worth_more_the_more_requests_come_meanwhile(self) -> None:
        crowd = {"running": [0, 40], "kv_tokens": [0, 40_000], "remaining_tokens": [0, 4_000]}
        for per_s, share in ((0.0, RELIEF_SHARE), (6.0, 0.006)):
            view = fleet("pd", outlook=replace(KNOWN, arrivals_per_s=per_s), **crowd)
            made = decide(view, times(view, FAST))
            alone_ms = float(made.terms["ttft_ms"][1])
            if per_s:
                share *= alone_ms
                assert share > RELIEF_SHARE
            assert term(made, "relief_ms", prefill=0, decode=1) == pytest.approx(-2 * share * alone_ms)

    def test_it_is_what_they_wait_for_where_that_is_less(self) -> None:
        few = {"running": [0, 1], "kv_tokens": [0, 1_000], "remaining_tokens": [0, 1], "cached_tokens": [0, 3_980]}
        made = decide(view := fleet("pd", **few), times(view, FAST))
        assert term(made, "relief_ms", prefill=0, decode=1) == pytest.approx(-0.05 * 20)

    def test_a_copy_takes_room_on_both_sides_unless_one_only_computes_prompts(self) -> None:
        dear = Outlook(100.0, reuse=0.5, evictions_seen=1e12)
        made = decide(fleet("bbp", outlook=dear))
        alone_ms = 0.05 * 4_100
        assert term(made, "eviction_ms", prefill=0, decode=1) == pytest.approx(alone_ms + 0.05 * 4_000)
        assert term(made, "eviction_ms", prefill=2, decode=1) == pytest.approx(alone_ms)

    def test_terms_add_up_where_caches_hold_more_than_they_are_said_to_have_room_for(self) -> None:
        dear = Outlook(100.0, reuse=0.5, evictions_seen=1e12)
        columns = backlog("bbp", w0=20_000, w1=20_000)
        held = [0, 900_000, 0]
        made = decide(fleet("bbp", outlook=dear, kv_capacity_tokens=[100_000] * 3, held_tokens=held, **columns))
        assert made.plans is not None
        assert len(made.plans.scores) == 4
        assert made.terms["eviction_ms"][0] < 0
        assert np.allclose(np.sum(list(made.plans.terms.values()), axis=0), made.plans.scores)


class TestRoomAndLimits:
    def test_what_would_not_fit_is_never_begun(self) -> None:
        busy = backlog("pdd", w1=30_000, w2=30_000)
        view = fleet("pdd", kv_capacity_tokens=[400_000, 34_099, 34_100], **busy)
        made = decide(view, times(view, FAST))
        assert made.worker == "w2/0"
        number = number_of(made, prefill=0, decode=1)
        assert made.plans is not None
        assert made.plans.excluded == {number: "would not fit: 4,099 KV tokens are free, 4,100 are needed"}
        assert made.plans.scores[number] == np.inf

    def test_room_is_what_the_engine_says_where_that_is_less(self) -> None:
        view = fleet("pd", kv_used_tokens=[0, 396_000], **backlog("pd", w1=30_000))
        assert decide(view, times(view, FAST)).prefill_worker is None

    def test_what_requests_share_takes_room_once_where_the_engine_says_what_is_used(self) -> None:
        view = fleet("pd", kv_used_tokens=[0, 200_000], **(backlog("pd", w1=30_000) | {"kv_tokens": [0, 900_000]}))
        assert decide(view, times(view, FAST)).prefill_worker == "w0/0"
        silent = fleet("pd", **(backlog("pd", w1=30_000) | {"kv_tokens": [0, 900_000]}))
        assert decide(silent, times(silent, FAST)).prefill_worker is None

    def test_room_for_what_is_on_its_way_is_promised(self) -> None:
        def apart(coming: int) -> bool:
            there = {"running": [0, 40], "kv_tokens": [0, 200_000], "waiting_first": [0, coming]}
            view = fleet("pd", rules=rules("always"), kv_used_tokens=[0, 380_000], **there)
            return decide(view).prefill_worker is not None

        assert apart(3)
        assert not apart(4)

    def test_an_unknown_capacity_is_no_reason(self) -> None:
        view = fleet("pd", kv_capacity_tokens=[0, 0], **backlog("pd", w1=500_000))
        assert decide(view, times(view, FAST)).prefill_worker == "w0/0"

    def test_caches_above_the_limit_are_not_moved(self) -> None:
        busy = backlog("pd", w1=30_000)
        size = 4_000 * 131_072
        assert decide(fleet("pd", rules=rules(most_bytes=size), **busy)).prefill_worker == "w0/0"
        made = decide(fleet("pd", rules=rules(most_bytes=size - 1), **busy))
        assert made.plan == Aggregate(made.view.workers[1])
        assert made.plans is not None
        assert made.plans.excluded == {0: "524,288,000 bytes would be moved, 524,287,999 are allowed"}

    def test_off_moves_nothing_and_leaves_workers_for_prompts_out(self) -> None:
        made = decide(fleet("pd", rules=rules("off"), **backlog("pd", w1=90_000)))
        assert (made.plans, made.worker, made.prefill_worker) == (None, "w1/0", None)
        assert decide(fleet("p", rules=rules("off"))).worker is None

    def test_always_is_apart_wherever_two_can_by_the_least_score_among_these(self) -> None:
        view = fleet("ppdb", rules=rules("always"), **backlog("ppdb", w1=9_000, w2=9_000))
        made = decide(view, times(view, link(2.5, 100.0)))
        assert made.plan == Disaggregate(view.workers[0], view.workers[3])
        assert made.plans is not None
        assert made.plans.scores[made.plans.chosen] == made.plans.scores.min()
        assert made.chosen_score is not None
        assert made.chosen_score > made.scores[3]
        assert decide(fleet("b", rules=rules("always"))).worker == "w0/0"

    def test_without_a_word_on_bytes_the_usual_is_assumed_and_said(self) -> None:
        view = fleet("pd", rules=rules("always"), kv_token_bytes=[0, 0])
        made = decide(view, times(view, link(1.0)))
        assert made.note == BYTES_UNKNOWN
        assert term(made, "transfer_ms", prefill=0, decode=1) == pytest.approx(4_000 * 131_072 / 1e6)
        nothing = decide(view, FleetTimes({}))
        assert nothing.note == f"{NOTHING_KNOWN}; {BYTES_UNKNOWN}"


class TestPulls:
    """w0 holds the prompt, and can take nothing."""

    def view(self, held: int = 3_984, **columns: list[int]) -> FleetView:
        values = {"cached_tokens": [held, 0], "exact": [1, 1], "exclusion": [int(Exclusion.AT_CAP), 0]}
        return fleet("bb", **(values | columns))

    def test_what_is_fetched_sooner_than_computed_is_pulled(self) -> None:
        view = self.view()
        made = decide(view, times(view, link(10.0)))
        assert made.plan == Aggregate(view.workers[1], Pull(view.workers[0], 3_984))
        assert decide(view, times(view, link(1.0))).plan == Aggregate(view.workers[1])

    def test_it_flips_at_the_length_at_which_both_take_the_same_time(self) -> None:
        spread, floor_ms = 2.0, 30.0

        def pulled(held: int) -> bool:
            view = self.view(held)
            request = replace(REQUEST, prompt_tokens=held + 16)
            plan = decide(view, times(view, link(10.0, floor_ms, spread)), request).plan
            assert isinstance(plan, Aggregate)
            return plan.pull is not None

        low, high = 16, 8_000
        assert not pulled(low)
        assert pulled(high)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if pulled(middle) else (middle, high)
        more = 1 + float(mean_excess(np.array([spread]))[0])
        assert high == pytest.approx(floor_ms * more / (0.05 - more * 131_072 / 10e6), abs=1.5)

    def test_an_uncertain_link_has_to_be_better(self) -> None:
        view = self.view()
        assert isinstance(plan := decide(view, times(view, link(2.7, spread=1.0))).plan, Aggregate)
        assert plan.pull is not None
        assert decide(view, times(view, link(2.7, spread=3.0))).plan == Aggregate(view.workers[1])

    def test_only_what_a_worker_says_itself_is_fetched(self) -> None:
        assert decide(self.view(exact=[0, 1])).plans is None

    def test_a_pull_shares_the_link_with_those_under_way(self) -> None:
        made = decide(view := self.view(transfers_out=[2, 0]), times(view, link(10.0, 7.0)))
        assert term(made, "transfer_ms", decode=1, source=0) == pytest.approx(7 + 3 * 3_984 * 131_072 / 10e6)

    def test_nobody_fetches_less_than_it_holds(self) -> None:
        made = decide(self.view(cached_tokens=[2_000, 2_000]))
        assert made.plans is not None
        assert not len(made.plans.scores)

    def test_only_what_is_missing_is_moved(self) -> None:
        made = decide(self.view(cached_tokens=[3_984, 1_600]))
        assert isinstance(made.plan, Aggregate)
        assert made.plan.pull == Pull(made.view.workers[0], 3_984)
        assert made.plans is not None
        assert made.plans.moved_tokens.tolist() == [2_384]

    @pytest.mark.parametrize("reason", [Exclusion.UNREACHABLE, Exclusion.FAILING, Exclusion.ALREADY_TRIED])
    def test_nothing_is_fetched_from_a_worker_that_is_not_well(self, reason: Exclusion) -> None:
        assert decide(self.view(exclusion=[int(reason), 0])).plans is None

    def test_both_have_to_be_able_to_move_parts(self) -> None:
        assert decide(self.view(kv_sides=[ALL_SIDES, 3]), times(self.view(), link(1e-3))).worker == "w1/0"
        made = decide(self.view(kv_sides=[3, ALL_SIDES]))
        assert made.plan == Aggregate(made.view.workers[1])

    def test_of_several_sources_the_one_that_saves_most_is_taken(self) -> None:
        full = int(Exclusion.AT_CAP)
        view = fleet("bbbb", cached_tokens=[3_200, 3_984, 3_984, 0], exact=[1] * 4, exclusion=[full, full, full, 0])
        links = LinkTimes({(2, 3): link(40.0), (0, 3): link(40.0)}, link(5.0))
        made = decide(view, times(view, links))
        assert made.plan == Aggregate(view.workers[3], Pull(view.workers[2], 3_984))

    def test_a_limit_on_bytes_leaves_the_smaller_source(self) -> None:
        full = int(Exclusion.AT_CAP)
        view = fleet(
            "bbb",
            rules=rules(most_bytes=3_200 * 131_072),
            cached_tokens=[3_200, 3_984, 0],
            exact=[1] * 3,
            exclusion=[full, full, 0],
        )
        made = decide(view)
        assert made.plan == Aggregate(view.workers[2], Pull(view.workers[0], 3_200))

    def test_always_leaves_pulls_to_the_arithmetic(self) -> None:
        slow = self.view(exclusion=[int(Exclusion.AT_CAP), 0])
        slow = replace(slow, transfer=rules("always"))
        assert decide(slow, times(slow, link(0.1))).plan == Aggregate(slow.workers[1])


class TestWhatIsTold:
    def test_terms_of_a_plan_add_up_as_those_of_a_worker_do(self) -> None:
        made = decide(view := fleet("pdb", **backlog("pdb", w1=20_000)), times(view, link(5.0)))
        assert made.plans is not None
        assert np.allclose(np.sum(list(made.plans.terms.values()), axis=0), made.plans.scores)
        assert set(made.terms) <= set(made.plans.terms) | {"placement_ms"}

    def test_the_runner_up_may_be_any_plan(self) -> None:
        made = decide(view := fleet("pd", **backlog("pd", w1=20_000)), times(view, FAST))
        best = made.runner_up_plan()
        assert best is not None
        assert best[0] == Aggregate(view.workers[1])
        assert made.plans is not None
        assert best[1] == pytest.approx(made.scores[1] - made.plans.scores[0])
        assert made.runner_up() == ("w1/0", best[1])
        idle = decide(view := fleet("pd"), times(view, FAST))
        other = idle.runner_up_plan()
        assert other is not None
        assert other[0] == Disaggregate(view.workers[0], view.workers[1])

    def test_plans_that_can_not_be_better_are_worked_out_when_somebody_looks(self) -> None:
        made = decide(fleet("pd"))
        assert isinstance(made.plans, PlanRowsLater)
        assert (made.plans.chosen, made.plans.comparable, made.chosen_score) == (-1, True, made.scores[1])
        assert made.plans.scores[number_of(made, prefill=0, decode=1)] > made.scores[1]
        assert made.plans.chosen == -1
        with pytest.raises(AttributeError):
            _ = made.plans._nothing

    def test_where_plans_are_compared_only_the_choice_is_made_at_once(self) -> None:
        made = decide(view := fleet("ppd", **backlog("ppd", w0=9_000, w2=20_000)))
        assert isinstance(made.plans, PlanRowsLater)
        assert made.plan == Disaggregate(view.workers[1], view.workers[2])
        chosen = made.plans.chosen
        assert chosen >= 0
        assert chosen == int(made.plans.scores.argmin()) == number_of(made, prefill=1, decode=2)
        assert made.chosen_score == made.plans.scores[chosen] < made.scores[2]
        assert made.plan_of(chosen) == made.plan
        forced = decide(fleet("ppd", rules=rules("always"), **backlog("ppd", w0=9_000, w2=20_000)))
        assert type(forced.plans) is PlanRows
        assert (forced.plan, forced.plans.chosen) == (made.plan, chosen)
        assert np.array_equal(forced.plans.scores, made.plans.scores)

    def test_a_look_takes_no_part_in_chance(self) -> None:
        view, rng = fleet("ppdd", **backlog("ppdd", w2=20_000, w3=20_000)), random.Random(3)
        made = Cost().decide(REQUEST, view, times(view), 0.0, rng)
        before = rng.getstate()
        assert isinstance(made.plans, PlanRowsLater)
        ties = (made.plans.scores == made.plans.scores.min()).nonzero()[0].tolist()
        assert len(ties) == 4
        assert made.plans.chosen in ties
        assert rng.getstate() == before

    @pytest.mark.parametrize("waiting", [0, 20_000])
    def test_decisions_that_are_kept_do_not_keep_the_arrays_of_all_links(self, waiting: int) -> None:
        view = fleet("pd", **backlog("pd", w1=waiting))
        timing = times(view, FAST)
        made = decide(view, timing)
        link_rows = weakref.ref(timing.link_rows)
        del timing
        gc.collect()
        assert link_rows() is None
        assert term(made, "transfer_ms", prefill=0, decode=1) == pytest.approx(4_000 * 131_072 / 1e12)

    def test_a_copy_of_them_with_another_choice_is_worked_out_too(self) -> None:
        plans = decide(fleet("pd")).plans
        assert plans is not None
        copy = replace(plans, chosen=0)
        assert (copy.chosen, plans.chosen) == (0, -1)
        assert copy.scores is plans.scores

    def test_looking_at_them_changes_no_choice(self) -> None:
        made = decide(fleet("pd", **backlog("pd", w1=20_000))).plans
        assert made is not None
        assert made.chosen == 0
        later = PlanRowsLater(lambda: made)
        assert later.scores is made.scores
        assert later.chosen == -1

    def test_terms_are_worked_out_when_somebody_looks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        worked_out: list[Moves] = []

        def work_out(scene: Scene, links: LinkRows, moves: Moves) -> dict[str, Floats]:
            worked_out.append(moves)
            return move_terms(scene, links, moves)

        monkeypatch.setattr(cost_plans, "move_terms", work_out)
        made = decide(view := fleet("pd", **backlog("pd", w1=20_000)), times(view, FAST))
        assert made.prefill_worker == "w0/0"
        assert not worked_out
        assert term(made, "ttft_ms", prefill=0, decode=1) > 0
        assert term(made, "transfer_ms", prefill=0, decode=1) > 0
        assert len(worked_out) == 1

    def test_promises_adapters_and_weights_play_their_part(self) -> None:
        view = fleet(
            "pdd",
            adapter_missing=[0, 0, 1],
            weight_permille=[1000, 1000, 2000],
            slo_decoding=[0, 3, 0],
            slo_tpot_us=[0, 90_000, 0],
            running=[0, 3, 0],
            kv_tokens=[0, 3_000, 0],
            outlook=replace(KNOWN, adapter_load_ms=70.0),
        )
        made = decide(view, request=replace(REQUEST, slo=Slo(50.0, 30.0)))
        assert term(made, "slo_ms", prefill=0, decode=1) > 0
        assert term(made, "weight_ms", prefill=0, decode=1) > term(made, "weight_ms", prefill=0, decode=2) == 0
        assert term(made, "adapter_ms", prefill=0, decode=2) == 70.0
        assert made.plans is not None
        assert np.allclose(np.sum(list(made.plans.terms.values()), axis=0), made.plans.scores)

    def test_the_same_view_and_chance_decide_the_same(self) -> None:
        view = fleet("ppdd", **backlog("ppdd", w2=20_000, w3=20_000))
        assert len({str(decide(view).plan) for _ in range(10)}) == 1


def test_fleets_that_pass_nothing_on_decide_as_ever() -> None:
    columns = backlog("bbb", w0=2_000, w1=5_000)
    with_groups = decide(fleet("bbb", rules=rules("off"), **columns))
    without = decide(fleet("bbb", kv_group=[0, 0, 0], **columns))
    assert without.plans is None
    assert without.plan == with_groups.plan
    assert all(np.array_equal(without.terms[name], with_groups.terms[name]) for name in without.terms)


def test_plans_are_made_by_auto_as_well() -> None:
    view = fleet("pd", **backlog("pd", w1=20_000))
    for name in ("auto", "cost"):
        made = decide(view, times(view, FAST), policy=PolicyRegistry().get(name))
        assert made.plan == Disaggregate(view.workers[0], view.workers[1])
        assert made.plans is not None
        assert made.plans.comparable
