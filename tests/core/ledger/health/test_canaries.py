"""Who gets a canary, and what follows from how it goes."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pointsman.core.ledger import events as ev
from pointsman.core.ledger.events import CanaryResult
from pointsman.core.model.fault import Fault
from pointsman.core.model.kv_shape import HandShake, KvShape
from pointsman.core.model.view import Exclusion


def of(scene, name: str) -> list[float]:
    return [at_ms for at_ms, worker in scene.canaries if worker == f"{name}/0"]


class TestWho:
    def test_one_that_joined_gets_one_after_a_heartbeat_then_one_an_idle_minute(self, scene_of) -> None:
        scene = scene_of("a", "b")
        scene.wait(200)
        times = of(scene, "a")
        assert times[0] == 5_000
        assert {later - at_ms for at_ms, later in pairwise(times)} == {60_000}

    def test_traffic_is_proof_enough(self, scene_of) -> None:
        scene = scene_of("a", "b")
        scene.stream("a")
        scene.wait(300)
        assert of(scene, "a") == []
        assert of(scene, "b")

    def test_requests_now_and_then_are(self, scene_of) -> None:
        scene = scene_of("a", "b")
        for _ in range(10):
            scene.serve("a")
            scene.wait(50)
        assert of(scene, "a") == []

    @pytest.mark.parametrize("running", [(1, 0), (0, 1)])
    def test_one_with_others_requests_is_not_idle(self, scene_of, running: tuple[int, int]) -> None:
        scene = scene_of("a", "b")
        for _ in range(100):
            scene.ledger.apply(ev.MetricsRead("a/0", scene.now_ms, *running))
            scene.wait(1)
        assert of(scene, "a") == []

    @pytest.mark.parametrize("state", ["draining", "not ready", "lost"])
    def test_nobody_asks_one_that_takes_nothing(self, scene_of, state: str) -> None:
        scene = scene_of("a", "b")
        if state == "draining":
            scene.ledger.apply(ev.WorkerDraining("a/0", scene.now_ms, "asked to"))
        for _ in range(100):
            scene.now_ms += 1_000
            if state != "draining":
                reachable = state == "not ready"
                scene.ledger.apply(ev.HealthRead("a/0", scene.now_ms, reachable, False, "503"))
            scene.ledger.apply(ev.Tick(scene.now_ms))
            assert "a/0" not in {due.worker for due in scene.ledger.canaries_due(scene.now_ms)}

    def test_llamacpp_is_asked_only_in_doubt_and_openai_never(self, scene_of) -> None:
        scene = scene_of("a", kind="llamacpp")
        scene.join("b", kind="openai")
        scene.join("c", "d")
        scene.wait(200)
        assert of(scene, "a") == of(scene, "b") == []
        for name in "ab":
            scene.fail(name, Fault.CONNECT_LATE)
        scene.wait(2)
        assert len(of(scene, "a")) == 1
        assert of(scene, "b") == []
        assert scene.health("b").canary.off == "servers of kind openai are never asked to compute anything"

    def test_engines_that_serve_halves_only_could_not_answer_one(self, scene_of) -> None:
        scene = scene_of()
        scene.join("a", kind="sglang", kv=KvShape(HandShake.SGLANG, alone=False))
        scene.join("b", kind="sglang", kv=KvShape(HandShake.SGLANG))
        scene.wait(200)
        assert of(scene, "a") == []
        assert of(scene, "b")
        assert scene.health("a").canary.off == "it serves halves of requests only"

    def test_switched_off(self, scene_of) -> None:
        scene = scene_of("a", "b", canary=False)
        scene.wait(300)
        assert scene.canaries == []

    def test_never_two_to_one_worker(self, scene_of) -> None:
        scene = scene_of("a", "b")
        scene.engines["a"].canary = None
        scene.wait(19)
        assert len(of(scene, "a")) == 1

    def test_idle_ones_wait_for_those_in_doubt(self, scene_of) -> None:
        scene = scene_of(*"abc")
        scene.now_ms += 100_000
        scene.fail("c", Fault.CONNECT_LATE)
        due = scene.ledger.canaries_due(scene.now_ms)
        assert [(one.worker, one.urgent) for one in due] == [("c/0", True), ("a/0", False), ("b/0", False)]


class TestWhatFollows:
    def test_one_that_passes_proves_that_it_serves(self, scene_of) -> None:
        scene = scene_of("a", "b")
        assert scene.facts("a") == "yes yes unknown"
        scene.wait(6)
        assert scene.facts("a") == "yes yes yes"
        assert scene.health("a").canary.total_ms == 40.0

    def test_a_frozen_idle_worker_is_out_after_one(self, scene_of) -> None:
        scene = scene_of("a", "b")
        scene.serve("a")
        scene.engines["a"].canary = CanaryResult.LATE
        assert scene.until_out("a", 75) == pytest.approx(60, abs=2)
        assert scene.exclusion("a") is Exclusion.NOT_SERVING

    def test_one_that_never_served_may_compile_for_three_minutes(self, scene_of) -> None:
        scene = scene_of("a", "b")
        scene.engines["a"].canary = CanaryResult.LATE
        scene.wait(170)
        assert scene.exclusion("a") is Exclusion.NONE
        scene.until_out("a", 80)

    def test_a_busy_worker_may_be_late(self, scene_of) -> None:
        scene = scene_of("a", "b")
        scene.serve("a")
        scene.ledger.apply(ev.CanarySent("a/0", scene.now_ms))
        sent_ms = scene.now_ms
        scene.stream("a")
        scene.wait(10)
        scene.ledger.apply(ev.CanaryRead("a/0", scene.now_ms, sent_ms, CanaryResult.LATE, "late"))
        assert scene.exclusion("a") is Exclusion.NONE

    def test_one_error_is_a_doubt_two_are_not(self, scene_of) -> None:
        scene = scene_of("a", "b")
        scene.serve("a")
        scene.engines["a"].canary = CanaryResult.FAILED
        scene.wait(63)
        assert (scene.exclusion("a"), scene.facts("a")) == (Exclusion.NONE, "yes yes unknown")
        scene.until_out("a", 10)

    def test_an_error_and_then_none(self, scene_of) -> None:
        scene = scene_of("a", "b")
        scene.serve("a")
        scene.engines["a"].canary = CanaryResult.FAILED
        scene.wait(63)
        scene.engines["a"].canary = CanaryResult.PASSED
        scene.wait(8)
        assert scene.facts("a") == "yes yes yes"

    def test_an_engine_that_refuses_them_gets_no_more_and_is_well(self, scene_of) -> None:
        scene = scene_of("a", "b")
        scene.engines["a"].canary = CanaryResult.REFUSED
        scene.wait(300)
        assert len(of(scene, "a")) == 1
        assert scene.exclusion("a") is Exclusion.NONE
        assert scene.health("a").canary.off == "refused"
        assert [c.reason for c in scene.changes if c.what == "canary"] == ["refused"]

    def test_one_that_refuses_them_while_left_out_gets_a_real_request(self, scene_of) -> None:
        scene = scene_of("a", "b")
        scene.engines["a"].canary = CanaryResult.REFUSED
        for _ in range(5):
            scene.fail("a", Fault.SERVER_ERROR)
        scene.until_back("a", 15)
        scene.serve("a")
        assert scene.facts("a") == "yes yes yes"

    @pytest.mark.parametrize("result", [CanaryResult.BUSY, CanaryResult.REFUSED, CanaryResult.PASSED])
    def test_no_harm_in_these(self, scene_of, result: CanaryResult) -> None:
        scene = scene_of("a", "b")
        scene.serve("a")
        scene.engines["a"].canary = result
        scene.wait(300)
        assert scene.exclusion("a") is Exclusion.NONE

    def test_an_engine_that_dies_of_them_gets_no_third(self, scene_of) -> None:
        scene = scene_of("a", "b")
        scene.engines["a"].canary = CanaryResult.LOST
        for _ in range(10):
            scene.wait(30)
            engine = scene.engines["a"]
            scene.ledger.apply(ev.WorkerLeft("a/0", scene.now_ms, "it died"))
            scene.join("a")
            scene.engines["a"].canary = engine.canary
        assert len(of(scene, "a")) == 2
        assert scene.health("a").canary.off == "earlier processes of this engine died of canaries"

    def test_crashes_with_a_canary_that_passed_between_are_not_of_canaries(self, scene_of) -> None:
        scene = scene_of("a", "b")
        for _ in range(4):  # a supervisor restarted it, and a canary was just there
            scene.engines["a"].canary = CanaryResult.LOST
            for _ in range(70):
                if scene.health("a").canary.last != "lost":
                    scene.wait(1)
            assert scene.health("a").canary.last == "lost"
            scene.ledger.apply(ev.WorkerLeft("a/0", scene.now_ms, "it died"))
            scene.join("a")
            scene.wait(6)  # passes
        assert scene.health("a").canary.off is None

    def test_a_server_of_embeddings_that_fails_them_is_well(self, scene_of) -> None:
        scene = scene_of("a", "b")
        scene.engines["a"].canary = CanaryResult.FAILED
        out_s = 0
        for _ in range(600):
            if scene.exclusion("a") is Exclusion.NONE:
                scene.finish(scene.send("a", streamed=False))
            else:
                out_s += 1
            scene.wait(1)
        assert out_s <= 12
        assert scene.facts("a") == "yes yes yes"

    @pytest.mark.parametrize("idle_s", [0, 90])
    def test_and_so_is_an_idle_one(self, scene_of, idle_s: int) -> None:
        scene = scene_of("a", "b", cool_off_ms=10_000.0)
        scene.engines["a"].canary = CanaryResult.FAILED
        scene.wait(40 + idle_s)  # it failed two, was left out, and no third shows anything
        assert scene.exclusion("a") is Exclusion.NONE
        for _ in range(10):
            scene.finish(scene.send("a", streamed=False))
            scene.wait(70)
            assert scene.exclusion("a") is Exclusion.NONE
        assert scene.health("a").canary.off == "it answers requests, and fails canaries: failed"

    def test_one_that_waited_behind_a_request_which_was_answered_is_no_sign(self, scene_of) -> None:
        scene = scene_of("a", "b")
        scene.serve("a")
        sent_ms = scene.now_ms
        scene.ledger.apply(ev.CanarySent("a/0", sent_ms))
        asked = scene.send("a", prompt_tokens=50_000, streamed=False)
        scene.wait(9)
        scene.finish(asked)
        scene.ledger.apply(ev.CanaryRead("a/0", scene.now_ms + 1_000, sent_ms, CanaryResult.LATE, "late"))
        assert scene.exclusion("a") is Exclusion.NONE

    def test_nor_one_that_was_late_because_nobody_looked(self, scene_of) -> None:
        scene = scene_of("a", "b")
        scene.serve("a")
        sent_ms = scene.now_ms
        scene.ledger.apply(ev.CanarySent("a/0", sent_ms))
        scene.ledger.apply(ev.CanaryRead("a/0", scene.now_ms + 60_000, sent_ms, CanaryResult.LATE, "late"))
        assert scene.exclusion("a") is Exclusion.NONE

    def test_nobody_listening_is_sure(self, scene_of) -> None:
        scene = scene_of("a", "b")
        scene.engines["a"].canary = CanaryResult.UNREACHABLE
        scene.ledger.apply(ev.CanarySent("a/0", scene.now_ms))
        scene.ledger.apply(
            ev.CanaryRead("a/0", scene.now_ms, scene.now_ms, CanaryResult.UNREACHABLE, "connection refused")
        )
        assert (scene.exclusion("a"), scene.health("a").live.state) == (Exclusion.UNREACHABLE, "no")

    def test_what_comes_back_for_an_earlier_process_says_nothing(self, scene_of) -> None:
        scene = scene_of("a", "b")
        scene.serve("a")
        sent_ms = scene.now_ms
        scene.ledger.apply(ev.CanarySent("a/0", sent_ms))
        scene.join("a")
        scene.now_ms += 9_000
        for _ in range(3):
            scene.ledger.apply(ev.CanaryRead("a/0", scene.now_ms, sent_ms, CanaryResult.FAILED, "500"))
        scene.ledger.apply(ev.CanaryRead("gone/0", scene.now_ms, sent_ms, CanaryResult.PASSED, "ok"))
        assert scene.facts("a") == "yes yes unknown"
        assert scene.health("a").position == "trusted"

    def test_they_are_counted_apart_from_requests(self, scene_of) -> None:
        scene = scene_of("a", "b")
        scene.wait(130)
        snapshot = scene.ledger.snapshot()
        assert snapshot.totals.dispatched == snapshot.totals.finished == 0
        assert scene.ledger.health_counts.canaries["a/0", CanaryResult.PASSED] == len(of(scene, "a"))
