"""Failures, blame, quota, outliers and exclusions, each by itself."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.core.ledger.health.blame import Blame
from pointsman.core.ledger.health.exclusion import Facts, exclusion_of
from pointsman.core.ledger.health.facts import Cause, Known
from pointsman.core.ledger.health.failures import Failures
from pointsman.core.ledger.health.outliers import times_slower
from pointsman.core.ledger.health.quota import allowed_out, kept_in
from pointsman.core.ledger.health.settings import HealthSettings
from pointsman.core.model.blocks import text_block_keys
from pointsman.core.model.request import Request
from pointsman.core.model.view import Exclusion
from pointsman.core.model.worker import worker_id

SETTINGS = HealthSettings(failures=3)
A, B = worker_id("a"), worker_id("b")


class TestFailures:
    def test_so_many_in_a_row(self) -> None:
        failures = Failures()
        for at_ms in (1, 2):
            failures.failed(at_ms)
        assert failures.too_many(2, SETTINGS) is None
        failures.answered(3)
        for at_ms in (4, 5, 6):
            failures.failed(at_ms)
        assert failures.too_many(6, SETTINGS) == "3 failures in a row"

    def test_failures_long_apart_are_not_in_a_row(self) -> None:
        failures = Failures()
        for minute in range(5):
            failures.failed(61_000.0 * minute)
        assert failures.streak == 1

    def test_a_share_of_the_last_minute(self) -> None:
        failures = Failures()
        for number in range(20):
            (failures.failed if number % 2 else failures.answered)(100.0 * number)
        assert failures.too_many(2_000, SETTINGS) == "10 of the last 20 requests failed"
        assert failures.too_many(62_500, SETTINGS) is None

    def test_few_requests_have_no_share(self) -> None:
        failures = Failures()
        for at_ms in range(4):
            failures.failed(at_ms)
            failures.answered(at_ms)
        assert failures.too_many(9, SETTINGS) is None


class TestBlame:
    def test_a_prompt_that_fails_elsewhere_too_speaks_against_the_first_only(self) -> None:
        blame, keys = Blame(), text_block_keys(b"x" * 64, 16, 0)
        again = [Request(f"r{n}", "m", 0.0, 16, keys) for n in range(4)]
        assert blame.counts(again[0], A)
        assert not blame.counts(again[0], B)
        assert not blame.counts(again[1], B)
        assert blame.counts(again[2], A)
        blame.answered(again[3])
        assert blame.counts(again[3], B)

    def test_short_prompts_are_known_by_their_request(self) -> None:
        blame = Blame()
        assert blame.counts(Request("r1", "m", 0.0, 1), A)
        assert not blame.counts(Request("r1", "m", 0.0, 1), B)
        assert blame.counts(Request("r2", "m", 0.0, 1), B)

    def test_it_forgets_the_oldest(self) -> None:
        blame = Blame()
        for number in range(2_000):
            blame.counts(Request(f"r{number}", "m", 0.0, 1), A)
        assert len(blame) <= 512


class TestQuota:
    @pytest.mark.parametrize(
        ("usable", "share", "most"),
        [(0, 0.5, 0), (1, 0.5, 0), (1, 1.0, 0), (2, 0.5, 1), (3, 0.5, 1), (4, 0.5, 2), (10, 0.3, 3), (10, 1.0, 9)],
    )
    def test_how_many(self, usable: int, share: float, most: int) -> None:
        assert allowed_out(usable, share) == most

    def test_the_first_stay_out(self) -> None:
        groups = {("m", "both"): ["a", "b", "c", "d"]}
        assert kept_in(groups, [(3, "c"), (1, "a"), (2, "b")], 0.5) == {"c"}

    def test_one_that_is_needed_for_any_model_is_kept(self) -> None:
        groups = {("m", "both"): ["a", "b", "c"], ("only", "both"): ["a"]}
        assert kept_in(groups, [(1, "a"), (2, "b")], 0.5) == {"a"}

    @given(
        st.dictionaries(
            st.tuples(st.sampled_from("xyz"), st.just("both")), st.lists(st.sampled_from("abcdefg"), unique=True)
        ),
        st.sets(st.sampled_from("abcdefg")),
        st.floats(0, 1),
    )
    def test_one_always_stays(self, groups: dict[tuple[str, str], list[str]], out: set[str], share: float) -> None:
        kept = kept_in(groups, [(0.0, name) for name in sorted(out)], share)
        for workers in groups.values():
            used = [name for name in workers if name not in out or name in kept]
            assert bool(used) == bool(workers)
            assert len(workers) - len(used) <= allowed_out(len(workers), share)


class TestOutliers:
    def test_ratios_count_and_not_differences(self) -> None:
        peers = [math.log(ms) for ms in (20, 22, 19, 21)]
        assert times_slower(math.log(79), peers, 4.0) is None
        assert times_slower(math.log(100), peers, 4.0) == pytest.approx(100 / 20.49, rel=0.01)

    def test_where_all_differ_more_is_needed(self) -> None:
        peers = [math.log(ms) for ms in (10, 20, 40, 80, 160)]
        assert times_slower(math.log(400), peers, 4.0) is None

    def test_one_peer_is_worth_half(self) -> None:
        assert times_slower(math.log(70), [math.log(10)], 4.0) is None
        assert times_slower(math.log(81), [math.log(10)], 4.0) == pytest.approx(8.1)

    def test_nobody_to_compare_with(self) -> None:
        assert times_slower(100.0, [], 4.0) is None

    @given(st.lists(st.floats(0, 10), min_size=2, max_size=9), st.floats(0, 10))
    def test_the_median_itself_is_never_out(self, peers: list[float], beyond: float) -> None:
        assert times_slower(sorted(peers)[len(peers) // 2] * 0.999, peers, 4.0) is None
        if times_slower(beyond, peers, 4.0) is not None:
            assert beyond > sorted(peers)[(len(peers) - 1) // 2]


class TestExclusion:
    def test_every_combination_has_one_answer_and_only_well_ones_are_used(self) -> None:
        causes = (None, Cause.FAILURES, Cause.STALLED)
        flags = (False, True)
        for probed, live, ready, cause, paused, kept, tried in product(
            flags, Known, Known, causes, flags, flags, flags
        ):
            found = exclusion_of(Facts(probed, live, ready, cause, paused, kept, tried))
            well = probed and live is Known.YES and ready is Known.YES
            let_in = cause is None or kept or tried
            assert (found is Exclusion.NONE) == (well and let_in and (kept or not paused))

    @pytest.mark.parametrize(
        ("facts", "expected"),
        [
            (Facts(False, Known.UNKNOWN, Known.UNKNOWN), Exclusion.NOT_PROBED),
            (Facts(True, Known.NO, Known.UNKNOWN), Exclusion.UNREACHABLE),
            (Facts(True, Known.UNKNOWN, Known.UNKNOWN), Exclusion.UNREACHABLE),
            (Facts(True, Known.YES, Known.NO, Cause.FAILURES), Exclusion.NOT_READY),
            (Facts(True, Known.YES, Known.YES, Cause.FAILURES), Exclusion.FAILING),
            (Facts(True, Known.YES, Known.YES, Cause.CANARY), Exclusion.NOT_SERVING),
            (Facts(True, Known.YES, Known.YES, paused=True), Exclusion.PAUSED),
        ],
    )
    def test_the_worst_is_named(self, facts: Facts, expected: Exclusion) -> None:
        assert exclusion_of(facts) is expected
        assert expected.text
