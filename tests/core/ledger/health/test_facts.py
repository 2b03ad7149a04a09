"""Live, ready and serving are three facts; unknown is not no."""

from __future__ import annotations

from pointsman.core.ledger import events as ev
from pointsman.core.model.fault import Fault
from pointsman.core.model.view import Exclusion


def test_from_unknown_to_serving(scene_of) -> None:
    scene = scene_of("a", canary=False)
    assert scene.facts("a") == "yes yes unknown"
    scene.serve("a")
    scene.wait(1)
    assert scene.facts("a") == "yes yes yes"
    assert [(c.what, c.state, c.cause) for c in scene.changes] == [
        ("live", "yes", "probe"),
        ("ready", "yes", "probe"),
        ("serving", "yes", "tokens"),
    ]


def test_a_slow_probe_while_tokens_flow_is_nothing(scene_of) -> None:
    scene = scene_of("a", "b")
    scene.stream("a")
    scene.engines["a"].answers = False
    scene.wait(60)
    assert (scene.exclusion("a"), scene.facts("a")) == (Exclusion.NONE, "yes yes yes")


def test_a_slow_probe_of_one_that_tells_its_load_is_nothing_either(scene_of) -> None:
    scene = scene_of("a", "b", canary=False)
    scene.engines["a"].answers = False
    for _ in range(12):
        scene.ledger.apply(ev.MetricsRead("a/0", scene.now_ms, 0, 0))
        scene.wait(5)
        assert scene.exclusion("a") is Exclusion.NONE
    scene.wait(15)
    assert (scene.exclusion("a"), scene.health("a").live.state) == (Exclusion.UNREACHABLE, "unknown")


def test_nobody_listening_outweighs_a_load_read_before(scene_of) -> None:
    scene = scene_of("a", "b", canary=False)
    scene.ledger.apply(ev.MetricsRead("a/0", scene.now_ms, 0, 0))
    for _ in range(2):
        scene.ledger.apply(ev.HealthRead("a/0", scene.now_ms + 1, False, False, "connection refused", refused=True))
    assert scene.exclusion("a") is Exclusion.UNREACHABLE


def test_a_model_that_loads_for_ten_minutes_is_not_ready_and_not_dead(scene_of) -> None:
    scene = scene_of("a", "b")
    for _ in range(60):
        scene.ledger.apply(ev.HealthRead("a/0", scene.now_ms, True, False, "GET /health answered 503"))
        scene.now_ms += 10_000
    assert (scene.exclusion("a"), scene.facts("a").split()[:2]) == (Exclusion.NOT_READY, ["yes", "no"])
    scene.probe("a")
    assert scene.exclusion("a") is Exclusion.NONE


def test_probes_that_are_not_answered_leave_it_unknown_and_refused_ones_do_not(scene_of) -> None:
    scene = scene_of("a", "b", "c")
    for _ in range(2):
        scene.ledger.apply(ev.HealthRead("a/0", scene.now_ms, False, False, "timed out"))
        scene.ledger.apply(ev.HealthRead("b/0", scene.now_ms, False, False, "connection refused", refused=True))
    assert scene.facts("a").split()[:2] == ["unknown", "unknown"]
    assert scene.facts("b").split()[:2] == ["no", "unknown"]
    assert scene.usable() == ["c"]


def test_tokens_bring_back_what_was_only_unknown(scene_of) -> None:
    scene = scene_of("a", "b", "c", canary=False)
    streams = {name: scene.stream(name)[0] for name in ("a", "b")}
    scene.now_ms += 30_000
    for _ in range(2):
        scene.ledger.apply(ev.HealthRead("a/0", scene.now_ms, False, False, "timed out"))
        scene.ledger.apply(ev.HealthRead("b/0", scene.now_ms, False, False, "connection refused", refused=True))
    for name, request_id in streams.items():
        scene.ledger.apply(ev.Progress(request_id, scene.now_ms, 5))
        assert scene.exclusion(name) is (Exclusion.NONE if name == "a" else Exclusion.UNREACHABLE)


def test_a_refused_request_counts_at_once_and_the_next_probe_brings_it_back(scene_of) -> None:
    scene = scene_of("a", "b")
    scene.fail("a", Fault.UNREACHABLE)
    assert (scene.exclusion("a"), scene.facts("a").split()[0]) == (Exclusion.UNREACHABLE, "no")
    assert scene.health("a").live.reason == "it was unreachable"
    scene.probe("a")
    assert scene.exclusion("a") is Exclusion.NONE


def test_a_new_process_begins_anew_but_its_next_cool_off_does_not(scene_of) -> None:
    scene = scene_of("a", "b", failures=1, canary=False)
    scene.fail("a", Fault.SERVER_ERROR)
    assert scene.exclusion("a") is Exclusion.FAILING
    scene.join("a")
    assert scene.exclusion("a") is Exclusion.NONE
    scene.fail("a", Fault.SERVER_ERROR)
    assert scene.ledger.snapshot().workers[-1].health.until_ms == scene.now_ms + 20_000


def test_changes_are_bounded_and_tell_what_was_lost(scene_of) -> None:
    scene = scene_of("a", "b")
    for number in range(3_000):
        scene.ledger.apply(ev.HealthRead("a/0", scene.now_ms, True, number % 2 == 0, "now and then"))
    assert len(scene.ledger.take_health_changes()) == 2_000
    assert scene.ledger.take_health_changes() == ()
    assert scene.ledger.health_counts.changes_lost > 900


def test_counts_go_with_a_worker_that_left_for_good(scene_of) -> None:
    scene = scene_of("a", "b")
    scene.wait(70)
    counts = scene.ledger.health_counts
    assert {worker for worker, *_ in counts.changes} == {"a/0", "b/0"}
    assert {worker for worker, _ in counts.canaries} == {"a/0", "b/0"}
    scene.ledger.apply(ev.WorkerLeft("a/0", scene.now_ms, "gone"))
    counts = scene.ledger.health_counts
    assert {worker for worker, *_ in counts.changes} == {worker for worker, _ in counts.canaries} == {"b/0"}


def test_a_long_prompt_explains_probes_that_are_not_answered_for_a_while(scene_of) -> None:
    scene = scene_of("a", "b", canary=False)
    scene.serve("a")
    scene.wait(4)
    scene.engines["a"].answers = False  # it computes, and its server waits for that
    scene.send("a", prompt_tokens=100_000)
    scene.wait(25)
    assert (scene.exclusion("a"), scene.health("a").live.state) == (Exclusion.NONE, "yes")
    scene.wait(15)
    assert (scene.exclusion("a"), scene.health("a").live.state) == (Exclusion.UNREACHABLE, "unknown")


def test_a_long_prompt_explains_nothing_where_nobody_listens(scene_of) -> None:
    scene = scene_of("a", "b", canary=False)
    scene.send("a", prompt_tokens=100_000)
    for _ in range(2):
        scene.ledger.apply(ev.HealthRead("a/0", scene.now_ms + 1, False, False, "connection refused", refused=True))
    assert (scene.exclusion("a"), scene.health("a").live.state) == (Exclusion.UNREACHABLE, "no")


def test_one_probe_that_is_not_answered_while_a_model_loads_says_nothing(scene_of) -> None:
    scene = scene_of("a", "b")
    for number in range(60):
        loads = number % 2 == 0
        reason = "GET /health answered 503" if loads else "not answered within 4 s"
        scene.ledger.apply(ev.HealthRead("a/0", scene.now_ms, loads, False, reason))
        scene.now_ms += 5_000
    changes = [(c.what, c.state) for c in scene.ledger.take_health_changes() if c.worker == "a/0"]
    assert changes == [("ready", "no")]
