"""Half-dead workers are out within two heartbeats; busy ones stay."""

from __future__ import annotations

import pytest

from pointsman.core.ledger import events as ev
from pointsman.core.ledger.events import CanaryResult
from pointsman.core.ledger.health.facts import Cause
from pointsman.core.model.view import Exclusion
from pointsman.core.timing.step import StepCoefficients

TWO_HEARTBEATS_S = 10.0


def flowing(scene, streams: int = 3) -> None:
    """All have streams that flow, for long enough that their speed is known."""
    for name in scene.engines:
        scene.stream(name, streams)
    scene.wait(10)
    assert scene.usable() == list(scene.engines)


class TestStalls:
    def test_streams_that_stop_are_out_within_two_heartbeats(self, scene_of) -> None:
        scene = scene_of(*"abcd")
        flowing(scene)
        scene.engines["a"].itl_ms = None
        assert scene.until_out("a", TWO_HEARTBEATS_S) <= TWO_HEARTBEATS_S
        assert scene.exclusion("a") is Exclusion.NOT_SERVING
        assert scene.health("a").cause is Cause.STALLED
        assert "no token for" in scene.health("a").reason
        assert [(c.state, c.cause) for c in scene.changes if c.what == "serving" and c.worker == "a/0"][-2:] == [
            ("unknown", "stalled"),
            ("no", "stalled"),
        ]

    def test_a_canary_that_passes_does_not_save_frozen_streams(self, scene_of) -> None:
        scene = scene_of(*"ab")
        flowing(scene)
        scene.engines["a"].itl_ms = None
        scene.engines["a"].canary = CanaryResult.PASSED
        scene.until_out("a", TWO_HEARTBEATS_S)
        scene.wait(60)
        assert scene.exclusion("a") is Exclusion.NOT_SERVING  # they still stand
        for flight in list(scene.ledger._fleet.entry("a/0").flights):
            scene.ledger.apply(ev.Cancelled(flight, scene.now_ms))
        assert scene.until_back("a", 10) <= 6

    def test_one_frozen_stream_beside_canaries_that_pass_takes_longer(self, scene_of) -> None:
        scene = scene_of(*"ab")
        flowing(scene, 1)
        scene.engines["a"].itl_ms = None
        assert 25 <= scene.until_out("a", 40) <= 35

    def test_one_frozen_stream_and_a_frozen_canary(self, scene_of) -> None:
        scene = scene_of(*"ab")
        flowing(scene, 1)
        scene.engines["a"].itl_ms = None
        scene.engines["a"].canary = CanaryResult.LATE
        scene.until_out("a", TWO_HEARTBEATS_S)

    def test_an_engine_that_says_that_it_generates_holds_something_back(self, scene_of) -> None:
        scene = scene_of(*"ab", canary=False)
        flowing(scene, 1)
        scene.engines["a"].itl_ms = None
        for second in range(60):
            scene.ledger.apply(ev.MetricsRead("a/0", scene.now_ms, 1, 0, 0.1, None, None, None, 50 * second))
            scene.wait(1)
            assert scene.exclusion("a") is Exclusion.NONE
        assert scene.health("a").position == "trusted"

    def test_many_tool_calls_that_are_held_back(self, scene_of) -> None:
        scene = scene_of(*"ab", canary=False)
        flowing(scene, 6)
        scene.engines["a"].itl_ms = None
        for second in range(60):
            scene.ledger.apply(ev.MetricsRead("a/0", scene.now_ms, 6, 0, 0.1, None, None, None, 300 * second))
            scene.wait(1)
            assert scene.exclusion("a") is Exclusion.NONE

    def test_tokens_of_new_streams_say_nothing_of_frozen_ones(self, scene_of) -> None:
        """Its own count goes up by what new streams show, and by no more."""
        scene = scene_of(*"ab", canary=False)
        flowing(scene, 6)
        scene.engines["a"].itl_ms = None
        told = 0
        for _ in range(9):
            scene.wait(1)
            if scene.exclusion("a") is Exclusion.NOT_SERVING:
                break
            told += 300
            quiet_ms = scene.now_ms - scene.engines["a"].last_ms
            scene.ledger.apply(ev.StreamsRead("a/0", scene.now_ms, 6, 300, scene.engines["a"].last_ms, quiet_ms))
            scene.ledger.apply(ev.MetricsRead("a/0", scene.now_ms, 6, 0, 0.1, None, None, None, told))
        assert scene.exclusion("a") is Exclusion.NOT_SERVING

    def test_when_all_stop_alike_nobody_is_out(self, scene_of) -> None:
        scene = scene_of(*"abcd")
        flowing(scene)
        for engine in scene.engines.values():
            engine.itl_ms = None
        scene.wait(60)
        assert scene.usable() == list("abcd")
        assert "as at most of its like" in scene.health("a").reason

    def test_a_long_prompt_explains_a_silence(self, scene_of) -> None:
        scene = scene_of(*"ab", canary=False)
        flowing(scene)
        scene.engines["a"].itl_ms = None  # whole prompts, not chunks: decodes wait meanwhile
        scene.send("a", prompt_tokens=100_000)
        scene.wait(60)
        assert scene.usable() == ["a", "b"]

    def test_requests_that_pile_up_explain_nothing(self, scene_of) -> None:
        scene = scene_of(*"ab", canary=False)
        flowing(scene)
        scene.engines["a"].itl_ms = None
        for _ in range(200):
            scene.send("a", prompt_tokens=200)
        assert scene.until_out("a", 400)
        assert scene.usable() == ["b"]

    def test_first_tokens_that_do_not_come(self, scene_of) -> None:
        scene = scene_of(*"ab", canary=False)
        scene.serve("a")
        scene.wait(3)
        for _ in range(3):
            scene.send("a", prompt_tokens=100)
        scene.until_out("a", TWO_HEARTBEATS_S)

    def test_others_requests_explain_that(self, scene_of) -> None:
        scene = scene_of(*"ab", canary=False)
        scene.serve("a")
        for _ in range(2):
            scene.ledger.apply(ev.MetricsRead("a/0", scene.now_ms, 8, 30))
        scene.send("a")
        scene.wait(60)
        assert scene.exclusion("a") is Exclusion.NONE

    def test_a_worker_that_never_answered_may_compile(self, scene_of) -> None:
        scene = scene_of(*"ab", canary=False)
        scene.send("a")
        scene.wait(120)
        assert scene.exclusion("a") is Exclusion.NONE
        scene.until_out("a", 90)

    def test_plain_answers_say_nothing_until_they_are_whole(self, scene_of) -> None:
        scene = scene_of(*"ab", canary=False)
        scene.serve("a")
        scene.send("a", streamed=False)
        scene.wait(1_200)
        assert scene.exclusion("a") is Exclusion.NONE

    def test_a_front_end_that_was_held_up_looks_at_nobody(self, scene_of) -> None:
        scene = scene_of(*"ab", canary=False)
        flowing(scene)
        scene.now_ms += 60_000
        for name in "ab":
            reading = ev.StreamsRead(f"{name}/0", scene.now_ms, 3, 0, scene.now_ms - 60_000, 60_000)
            scene.ledger.apply(reading)
        scene.ledger.apply(ev.Tick(scene.now_ms))
        assert scene.usable() == ["a", "b"]

    def test_nor_at_a_short_heartbeat(self, scene_of) -> None:
        scene = scene_of(*"ab", canary=False, heartbeat_ms=1_000.0)
        flowing(scene)
        scene.now_ms += 2_000
        reading = ev.StreamsRead("a/0", scene.now_ms, 3, 0, scene.now_ms - 2_000, 2_000)
        scene.ledger.apply(reading)
        scene.ledger.apply(ev.Tick(scene.now_ms))
        assert scene.health("a").position == "trusted"

    def test_switched_off(self, scene_of) -> None:
        scene = scene_of(*"ab", canary=False, outliers=False)
        flowing(scene)
        scene.engines["a"].itl_ms = None
        scene.wait(60)
        assert scene.usable() == ["a", "b"]

    def test_a_doubt_ends_with_the_next_token(self, scene_of) -> None:
        scene = scene_of(*"ab")
        flowing(scene)
        scene.engines["a"].itl_ms = None
        scene.wait(5)
        assert scene.facts("a") == "yes yes unknown"
        scene.engines["a"].itl_ms = 20.0
        scene.wait(1)
        assert scene.facts("a") == "yes yes yes"


class TestCrawls:
    def test_streams_that_crawl_are_out_within_two_heartbeats(self, scene_of) -> None:
        scene = scene_of(*"abcd", canary=False)
        flowing(scene)
        scene.engines["a"].itl_ms = 1_000.0
        scene.until_out("a", TWO_HEARTBEATS_S)
        assert scene.health("a").cause is Cause.SLOW
        assert "times what its like" in scene.health("a").reason

    def test_one_token_in_four_seconds(self, scene_of) -> None:
        scene = scene_of(*"abcd", canary=False)
        flowing(scene, 1)
        scene.engines["a"].itl_ms = 4_000.0
        scene.until_out("a", 30)

    @pytest.mark.parametrize("itl_ms", [60.0, 150.0])
    def test_a_little_slower_is_the_policys_affair(self, scene_of, itl_ms: float) -> None:
        scene = scene_of(*"abcd", canary=False)
        flowing(scene)
        scene.engines["a"].itl_ms = itl_ms
        scene.wait(60)
        assert scene.usable() == list("abcd")

    def test_all_slow_alike(self, scene_of) -> None:
        scene = scene_of(*"abcd", canary=False)
        flowing(scene)
        for engine in scene.engines.values():
            engine.itl_ms = 900.0
        scene.wait(60)
        assert scene.usable() == list("abcd")

    @pytest.mark.parametrize("names", ["ab", "abcd"])
    def test_all_slow_alike_with_few_tokens_each(self, scene_of, names: str) -> None:
        """A slow machine: far more than their load explains, and too few tokens of each for a figure of its own."""
        scene = scene_of(*names, canary=False, profile="known")
        flowing(scene, 1)
        for engine in scene.engines.values():
            engine.itl_ms = 400.0
        scene.wait(60)
        assert scene.usable() == list(names)
        assert all(scene.health(name).position == "trusted" for name in names)

    def test_plain_answers_in_the_batch_explain_slow_tokens(self, scene_of) -> None:
        scene = scene_of("b", canary=False)
        scene.ledger.know_profile("cpu", StepCoefficients(15.0, 5.0, 0.05, 0.05))
        scene.join("a", profile="cpu")
        scene.stream("a", 1)
        for _ in range(60):
            scene.send("a", streamed=False)
        scene.engines["a"].itl_ms = 320.0  # with its one stream alone it would be more than ten times too slow
        scene.wait(30)
        assert scene.usable() == ["b", "a"]

    def test_two_of_four_and_no_more(self, scene_of) -> None:
        scene = scene_of(*"abcde", canary=False)
        flowing(scene)
        for name in "ab":
            scene.engines[name].itl_ms = 2_000.0
        scene.wait(12)
        assert scene.usable() == list("cde")

    def test_it_comes_back_through_a_canary_as_fast_as_others(self, scene_of) -> None:
        scene = scene_of(*"abcd")
        scene.wait(70)  # all had a canary
        flowing(scene)
        crawler = scene.engines["a"]
        crawler.itl_ms, crawler.canary_ms = 2_000.0, 4_000.0
        scene.until_out("a", TWO_HEARTBEATS_S)
        for flight in list(scene.ledger._fleet.entry("a/0").flights):
            scene.ledger.apply(ev.Cancelled(flight, scene.now_ms))
        scene.wait(40)
        assert scene.exclusion("a") is Exclusion.NOT_SERVING  # its canaries crawl, too
        crawler.canary_ms = 40.0
        scene.until_back("a", 60)

    def test_with_nobody_to_compare_its_own_times_count(self, scene_of) -> None:
        scene = scene_of(*"ab", canary=False, profile="known")
        scene.stream("a", 3)
        scene.wait(10)
        scene.engines["a"].itl_ms = 1_000.0
        scene.until_out("a", TWO_HEARTBEATS_S)

    def test_a_full_batch_explains_slow_tokens(self, scene_of) -> None:
        scene = scene_of(*"abc", canary=False, profile="known")
        for name in "bc":
            scene.stream(name, 3)
        scene.stream("a", 200, prompt_tokens=30_000)
        scene.engines["a"].itl_ms = 320.0  # 15 times that of the others, as its load explains
        scene.wait(60)
        assert scene.usable() == list("abc")


class TestLateFirstTokens:
    def run(self, scene, seconds: int, waits_ms: dict[str, float], tokens: int = 500) -> None:
        """A request a second each, answered after so long."""
        pending: list[tuple[float, str]] = []
        for _ in range(seconds):
            for name, wait_ms in waits_ms.items():
                pending.append((scene.now_ms + wait_ms, scene.send(name, prompt_tokens=tokens)))
            due = [one for one in pending if one[0] < scene.now_ms + 1000.0]
            pending = [one for one in pending if one not in due]
            for due_ms, sent in due:
                scene.ledger.apply(ev.FirstToken(sent, due_ms))
                scene.ledger.apply(ev.Finished(sent, due_ms, tokens, 0, 1))
            scene.wait(1)

    def test_late_beside_others(self, scene_of) -> None:
        scene = scene_of(*"abcd", canary=False, profile="known")
        self.run(scene, 18, {"a": 3_500.0, "b": 100.0, "c": 120.0, "d": 90.0})
        assert scene.exclusion("a") is Exclusion.NOT_SERVING
        assert scene.health("a").cause is Cause.FIRST_TOKENS
        assert "to first tokens" in scene.health("a").reason
        assert scene.usable() == list("bcd")

    def test_what_waits_before_them_explains_it(self, scene_of) -> None:
        scene = scene_of(*"abcd", canary=False, profile="known")
        busy = [scene.send("a", prompt_tokens=120_000) for _ in range(3)]
        self.run(scene, 30, {"a": 3_500.0, "b": 100.0, "c": 120.0, "d": 90.0})
        assert busy
        assert scene.usable() == list("abcd")

    def test_all_late_alike(self, scene_of) -> None:
        scene = scene_of(*"abcd", canary=False, profile="known")
        self.run(scene, 40, dict.fromkeys("abcd", 3_500.0))
        assert scene.usable() == list("abcd")

    def test_others_requests_are_not_known_well_enough(self, scene_of) -> None:
        scene = scene_of(*"abcd", canary=False, profile="known")
        for _ in range(2):
            scene.ledger.apply(ev.MetricsRead("a/0", scene.now_ms, 20, 5))
        self.run(scene, 25, {"a": 3_500.0, "b": 100.0, "c": 120.0, "d": 90.0})
        assert scene.usable() == list("abcd")


def test_prompts_that_were_computed_between_tokens_explain_how_late_these_were(scene_of) -> None:
    scene = scene_of(*"abc", canary=False, profile="known")
    flowing(scene)
    scene.engines["a"].itl_ms = 500.0
    for _ in range(40):
        scene.serve_prompt("a", 16_000)  # 0.05 ms a token: 800 ms of each second
        scene.wait(1)
    assert {change.cause for change in scene.changes if change.worker == "a/0"} == {"probe", "tokens"}
    scene.until_out("a", TWO_HEARTBEATS_S)  # without them it crawls
